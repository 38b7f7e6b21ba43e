"""What a call runs of a paper's tables, and where the next one continues, however the first ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from advisor.errors import OptionError
from benchmarks.json_lines import append
from benchmarks.papers import sublinear
from benchmarks.papers.command import Options, TimeIsUpError, options_of, report
from benchmarks.papers.figures import Figure, read
from benchmarks.papers.runs import figure
from benchmarks.papers.units import Known, Unit, run_units

SIZE = "size, MiB"


class Table:
    """Existing rows, and a call that measures the missing ones; each row has two values."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ran: list[str] = []
        self.does: dict[str, Callable[[], Iterable[Figure]]] = {}

    def figure(self, row: str, ours: float | None = 1.0, reason: str = "") -> Figure:
        return figure(self.options, "paper", "Table", row, SIZE, ours, reason=reason)

    def call(
        self, *rows: str, finish: Callable[[Known], Iterable[Figure]] = lambda known: (), **changes: object
    ) -> None:
        options = msgspec.structs.replace(self.options, minutes=1.0, begin=time.monotonic(), **changes)
        report("paper", options, run_units(options, "paper", [self.unit(row) for row in rows], finish))

    def unit(self, row: str, needed_seconds: float = 0.0) -> Unit:
        def make(known: Known) -> Iterator[Figure]:
            self.ran.append(row)
            if row in self.does:
                yield from self.does[row]()
                return
            yield self.figure(row)
            yield figure(self.options, "paper", "Table", row, "time, ms", 2.0)

        return Unit(table="Table", row=row, column=SIZE, make=make, needed_seconds=needed_seconds)

    def there(self) -> dict[tuple[str, str], float | str]:
        lines = read(self.options.output)
        return {(one.row, one.column): one.reason if one.ours is None else one.ours for one in lines}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(options_of("test", "A test.", ["--device", "cpu", "--output", str(tmp_path / "papers.jsonl")]))


def time_is_up() -> Iterator[Figure]:
    yield from ()
    raise TimeIsUpError


def test_units_that_never_ran_come_before_failed_ones_least_recently_tried_first(table: Table) -> None:
    for row, ours, reason in (
        ("a", None, "timeout: 120 s"),
        ("b", 1.0, ""),
        ("c", None, "out of memory: too large"),
        ("d", None, "crashed"),
        ("a", None, "timeout: again"),
    ):
        append(table.options.output, table.figure(row, ours, reason))
    table.call("a", "b", "c", "d", "e", "f")
    assert table.ran == ["e", "f", "d", "a"]


def test_a_unit_that_is_cut_short_says_so_and_goes_to_the_end(table: Table) -> None:
    table.does["long"] = time_is_up
    table.call("first", "long", "last")
    assert table.there()["long", SIZE] == "cut short by the end of a call"
    assert ("last", SIZE) not in table.there()
    table.ran.clear()
    table.call("first", "long", "last")
    assert table.ran == ["last", "long"]


def test_repeating_a_unit_keeps_its_old_values_if_the_call_ends(table: Table) -> None:
    table.call("row")
    table.does["row"] = time_is_up
    table.call("row", again=True)
    assert table.there()["row", SIZE] == 1.0


def test_a_user_error_is_the_reason_of_its_row_only(table: Table) -> None:
    def too_little() -> Iterator[Figure]:
        raise OptionError("only 3 MiB are free")
        yield

    table.does["a"] = too_little
    table.call("a", "b")
    assert table.there()["a", SIZE] == "only 3 MiB are free"
    assert table.there()["b", SIZE] == 1.0


def test_an_interrupted_unit_leaves_no_partial_values(table: Table) -> None:
    def half() -> Iterator[Figure]:
        yield table.figure("a")
        raise KeyboardInterrupt

    table.does["a"] = half
    with pytest.raises(KeyboardInterrupt):
        table.call("a")
    assert table.there() == {}
    table.does.clear()
    table.call("a")
    assert table.there() == {("a", SIZE): 1.0, ("a", "time, ms"): 2.0}


def test_derived_values_are_reported_even_when_the_time_is_up(table: Table) -> None:
    def finish(known: Known) -> Iterator[Figure]:
        yield figure(table.options, "paper", "Sum", "all", SIZE, sum(one.ours or 0.0 for one in known.values()))

    table.does["long"] = time_is_up
    table.call("a", "long", finish=finish)
    assert table.there()["all", SIZE] == 3.0


def test_a_unit_starts_if_its_time_is_left_or_it_is_the_first_of_the_call(table: Table) -> None:
    options = msgspec.structs.replace(table.options, minutes=1.0)
    long = [table.unit(row, needed_seconds=100.0) for row in ("a", "b")]
    report("paper", options, run_units(options, "paper", long))
    assert table.ran == ["a"]
    assert ("b", SIZE) not in table.there(), "it was not begun"


@pytest.mark.slow
def test_a_real_table_is_complete_wherever_its_calls_ended(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    arguments = ["--size", "smoke", "--device", "cpu", "--output"]
    sublinear.main([*arguments, str(whole)])
    lines = whole.read_bytes().splitlines(keepends=True)
    rows = [msgspec.json.decode(line, type=Figure).row for line in lines]
    ends = [place for place in range(1, len(rows)) if rows[place] != rows[place - 1]]
    for kept in (ends[0], ends[4]):
        cut.write_bytes(b"".join(lines[:kept]) + lines[kept][:40])
        sublinear.main([*arguments, str(cut)])
        assert {one.place for one in read(cut)} == {one.place for one in read(whole)}
