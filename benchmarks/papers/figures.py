"""A paper's value and ours: one line of JSON each, written as soon as it is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import json_lines
from benchmarks.json_lines import latest
from benchmarks.markdown import cell, days, number, packages

__all__ = ["Figure", "markdown", "read"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The paper's value and the measured one.

    Attributes:
        paper: Name of the module.
        table: Heading of its table.
        row: The run.
        column: The quantity, with its unit.
        theirs: The paper's value; ``None`` if it has none.
        ours: The measured value; ``None`` if there is none.
        reason: Why there is none, or a note on it.
        size: ``"smoke"`` or ``"paper"``.
        device: Name of the device.
        versions: Package -> version.
        date: ISO date.
    """

    paper: str
    table: str
    row: str
    column: str
    theirs: float | None = None
    ours: float | None = None
    reason: str = ""
    size: str
    device: str
    versions: dict[str, str]
    date: str

    @property
    def place(self) -> tuple[str, str, str, str, str, str]:
        """What the value measures; a later one for the same place replaces it."""
        return self.paper, self.table, self.row, self.column, self.size, self.device


def read(path: Path, *, latest_last: bool = False) -> list[Figure]:
    """The values of a file, the last of each place; none if it does not exist.

    Args:
        path: The file.
        latest_last: Order them by when they were last written, instead of first.
    """
    return latest(json_lines.read(path, msgspec.json.Decoder(Figure)), latest_last=latest_last)


def markdown(figures: Sequence[Figure], *, level: int = 2) -> str:
    """One table per heading, at the given level, in the order in which values were first measured."""
    parts = []
    for heading in dict.fromkeys((one.table, one.size, one.device) for one in figures):
        rows = [one for one in figures if (one.table, one.size, one.device) == heading]
        table, size, device = heading
        parts.append(f"{'#' * level} {table}\n\n{_circumstances(rows, device, size)}\n\n{_table(rows)}")
    return "\n\n".join(parts)


def _circumstances(rows: Sequence[Figure], device: str, size: str) -> str:
    """Device, dates, and every version that any of the rows was measured with."""
    versions = packages(one.versions for one in sorted(rows, key=lambda one: one.date))
    return f"On {device}, size {size}, {days(one.date for one in rows)}, with {versions}."


def _table(rows: Sequence[Figure]) -> str:
    lines = ["| run | value | paper | ours | ours / paper | |", "|---|---|---|---|---|---|"]
    for run in dict.fromkeys(one.row for one in rows):
        of_run = [one for one in rows if one.row == run]
        lines += [_line(one) for one in of_run if one.ours is not None]
        missing = [one for one in of_run if one.ours is None]
        lines += [_without(reason, missing) for reason in dict.fromkeys(one.reason for one in missing)]
    return "\n".join(lines)


def _line(one: Figure) -> str:
    ratio = f"{one.ours / one.theirs:.2f}" if one.ours is not None and one.theirs else ""
    return f"| {one.row} | {one.column} | {number(one.theirs)} | {number(one.ours)} | {ratio} | {cell(one.reason)} |"


def _without(reason: str, missing: Sequence[Figure]) -> str:
    """One line for all values that a run lacks for the same reason."""
    alike = [one for one in missing if one.reason == reason]
    columns = "; ".join(one.column for one in alike)
    theirs = (
        "; ".join(number(one.theirs) or "-" for one in alike) if any(one.theirs is not None for one in alike) else ""
    )
    return f"| {alike[0].row} | {columns} | {theirs} |  |  | {cell(reason)} |"
