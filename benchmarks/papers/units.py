"""The order in which a call runs a paper's tables: first units that never ran, then failed ones.

A unit is measured together: the values of one row, or those that come from one run. They are stored together, so that a
call that ends in between leaves no partial units. A unit that the end of a call cuts short leaves a line that says so,
and goes to the end of the queue: one that takes longer than a whole call does not hold up the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from advisor.errors import UserError
from benchmarks.papers.command import Options, TimeIsUpError
from benchmarks.papers.figures import Figure, read
from benchmarks.papers.runs import figure, settled

__all__ = ["Known", "Unit", "run_units"]

Known = Mapping[tuple[str, str, str], Figure]
"""Table, row and column -> its latest value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """Values that are measured together.

    Attributes:
        table: Heading of their table.
        row: The run.
        column: The column that tells whether it was measured.
        make: Measures it, given what is known already.
        needed_seconds: Time that must be left of the call for it to start, unless it is the first of the call.
    """

    table: str
    row: str
    column: str
    make: Callable[[Known], Iterable[Figure]]
    needed_seconds: float = 0.0

    @property
    def place(self) -> tuple[str, str, str]:
        """The place of that value."""
        return self.table, self.row, self.column


def run_units(
    options: Options,
    paper: str,
    units: Sequence[Unit],
    finish: Callable[[Known], Iterable[Figure]] = lambda known: (),
) -> Iterator[list[Figure]]:
    """The values of each missing unit, as they come; a user error becomes its row's reason.

    Args:
        options: Options of the command.
        paper: Name of the module.
        units: In the order of their first run.
        finish: Values that follow from known ones; called at the end, and when the time is up.

    Raises:
        TimeIsUpError: After the last values: the minutes of this call are over.
    """
    known = {(one.table, one.row, one.column): one for one in options.known(paper)}
    try:
        for number, unit in enumerate(_in_order(options, paper, units)):
            options.check_time(unit.needed_seconds if number else 0.0)
            try:
                figures = list(unit.make(known))
            except UserError as error:
                figures = [figure(options, paper, *unit.place, None, reason=str(error))]
            except TimeIsUpError:
                if not options.again:  # such a line would replace existing values
                    yield [figure(options, paper, *unit.place, None, reason="cut short by the end of a call")]
                raise
            known |= {(one.table, one.row, one.column): one for one in figures}
            yield figures
    except TimeIsUpError:
        yield list(finish(known))
        raise
    yield list(finish(known))


def _in_order(options: Options, paper: str, units: Sequence[Unit]) -> list[Unit]:
    """The missing units: never run, then failed, least recently tried first."""
    if options.again:
        return list(units)
    mine = [one for one in read(options.output, latest_last=True) if one.paper == paper]
    mine = [one for one in mine if (one.size, one.device) == (options.size, options.hardware.name)]
    found = {(one.table, one.row, one.column): (place, settled(one)) for place, one in enumerate(mine)}
    fresh = [one for one in units if one.place not in found]
    lost = [one for one in units if one.place in found and not found[one.place][1]]
    return [*fresh, *sorted(lost, key=lambda one: found[one.place][0])]
