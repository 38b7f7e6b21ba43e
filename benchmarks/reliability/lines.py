"""A line of JSON for every scenario, written when it has run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks import json_lines
from benchmarks.json_lines import latest

__all__ = ["Line", "read"]


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
    """The lines of a file, the last of each scenario."""
    return latest(json_lines.read(path, msgspec.json.Decoder(Line)))
