"""A line of JSON for every scenario, written when it has run."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["Line", "append", "read"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one scenario.

    Attributes:
        table: ``"hit"`` (a signal) or ``"damaged"`` (a study file).
        name: Name of the scenario.
        group: The process that receives the signal, or the damaged file; results are counted by it.
        fault: The fault.
        seed: Seed of its moment; ``None`` if it was chosen by hand.
        problems: The violated requirements; empty if it passed.
        statuses: Exit statuses of the command with the fault (``None`` if there was none) and of its repetition.
        seconds: Total duration.
        device: Name of the device.
        cores: Number of cores that the process may use.
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
        """What the line is about; a later line for the same place replaces it."""
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
