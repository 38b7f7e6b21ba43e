"""A line of JSON for every row that was played, written when it is done."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["Line", "append", "read"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one row.

    Attributes:
        table: ``"hit"`` or ``"damaged"``.
        name: Of the row, in words.
        group: By what rows are counted together: who is hit, or which file is damaged.
        fault: What was done.
        seed: From which the place was drawn; ``None`` where it was chosen.
        problems: What did not hold; empty if everything did.
        statuses: Exit statuses of the command that was hit (``None`` if none was) and of the same once more.
        seconds: For all of it.
        device: Name of the device.
        cores: How many the process may use.
        versions: Package -> version.
        date: ISO date.
    """

    table: str
    name: str
    group: str
    fault: str
    seed: int | None
    problems: tuple[str, ...]
    statuses: tuple[int | None, int | None]
    seconds: float
    device: str
    cores: int
    versions: dict[str, str]
    date: str

    @property
    def place(self) -> tuple[str, str, int | None]:
        """What it is a line of: a later one of the same takes its place."""
        return self.table, self.name, self.seed


def read(path: Path) -> list[Line]:
    """The lines of a file, the last of each row; one that was cut off is left out."""
    found: dict[tuple[str, str, int | None], Line] = {}
    for text in path.read_bytes().splitlines() if path.exists() else ():
        try:
            line = msgspec.json.decode(text, type=Line)
        except msgspec.DecodeError:
            continue  # the process ended while it wrote; the row is played again
        found[line.place] = line
    return list(found.values())


def append(path: Path, line: Line) -> None:
    """Add a line; on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("ab") as file:
        file.write((b"\n" if cut_off else b"") + msgspec.json.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
