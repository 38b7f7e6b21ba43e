"""What one call runs of a paper's tables, and in what order: first what never ran, then what came to nothing.

A unit is what is measured together: the figures of one row, or those of them that come of one run. They are written
down together, so that a call that ends in between leaves no half of them. A unit that the end of a call cuts short
leaves a line that says so, and waits behind all others: one that takes longer than a whole call keeps none from coming.
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
"""Table, row and column -> the last figure of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """What is measured together.

    Attributes:
        table: Heading under which its figures stand.
        row: What is run.
        column: The figure that says whether it was measured.
        make: Measures it, given what is known already.
        needed_seconds: It begins if so many are left of the call, or if it is the first of the call.
    """

    table: str
    row: str
    column: str
    make: Callable[[Known], Iterable[Figure]]
    needed_seconds: float = 0.0

    @property
    def place(self) -> tuple[str, str, str]:
        """Of that figure."""
        return self.table, self.row, self.column


def run_units(
    options: Options,
    paper: str,
    units: Sequence[Unit],
    finish: Callable[[Known], Iterable[Figure]] = lambda known: (),
) -> Iterator[list[Figure]]:
    """The figures of each unit that is missing, as they come; what the user can put right is its row's reason.

    Args:
        options: Of the command.
        paper: Name of the module.
        units: In the order in which they are run the first time.
        finish: What follows from figures that are known; asked in the end, and when the time is up.

    Raises:
        TimeIsUpError: After the last figures: the minutes of this call are over.
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
                if not options.again:  # what is there already would be lost behind such a line
                    yield [figure(options, paper, *unit.place, None, reason="cut short by the end of a call")]
                raise
            known |= {(one.table, one.row, one.column): one for one in figures}
            yield figures
    except TimeIsUpError:
        yield list(finish(known))
        raise
    yield list(finish(known))


def _in_order(options: Options, paper: str, units: Sequence[Unit]) -> list[Unit]:
    """What is missing; what came to nothing last, and of that what was tried last."""
    if options.again:
        return list(units)
    mine = [one for one in read(options.output, latest_last=True) if one.paper == paper]
    mine = [one for one in mine if (one.size, one.device) == (options.size, options.hardware.name)]
    found = {(one.table, one.row, one.column): (place, settled(one)) for place, one in enumerate(mine)}
    fresh = [one for one in units if one.place not in found]
    lost = [one for one in units if one.place in found and not found[one.place][1]]
    return [*fresh, *sorted(lost, key=lambda one: found[one.place][0])]
