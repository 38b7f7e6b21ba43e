"""A row: the results of one workload in one run, written as a line of JSON when the workload is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import json_lines
from benchmarks.json_lines import latest
from benchmarks.minutes.momadvise_run import Advice
from benchmarks.minutes.settings import ADVICE, UNTOUCHED
from benchmarks.minutes.turns import SpeedRatio

__all__ = ["ArmRow", "Row", "leaders_of_set", "read", "read_runs"]


class ArmRow(msgspec.Struct, frozen=True, kw_only=True):
    """One arm compared with the unmodified file.

    Attributes:
        name: Name of the setting, or ``"advice"``.
        batch: Samples per step; ``None`` if it did not train.
        beside: Its samples per second relative to the unmodified file's.
        reason: Why there is no measurement.
    """

    name: str
    batch: int | None = None
    beside: SpeedRatio | None = None
    reason: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one workload.

    Attributes:
        workload: Its name.
        size: ``"full"`` or ``"smoke"``.
        busy: Whether another process kept one core busy.
        repeat: Number of the run, from 1.
        time_limit: The value of ``--time-limit``; ``None`` for the default.
        seed: Seed of the arms' weights and batches, and of their order.
        device: Name of the device.
        cores: Number of cores that the process may use.
        versions: Package -> version.
        date: ISO date.
        advice: The answer of momadvise.
        untouched_batch: Samples per step of the unmodified file.
        arms: Every arm compared with the unmodified file.
        best: Name of the best of the set: a reference setting, or the unmodified file if all are slower. If two may be
            the best, the one with the less favourable result for the advice.
        advice_beside_best: The advice's samples per second relative to those of the best of the set, in turn with it.
        reason: Why that is missing.
    """

    workload: str
    size: str
    busy: bool
    repeat: int
    time_limit: str | None
    seed: int
    device: str
    cores: int
    versions: dict[str, str]
    date: str
    advice: Advice
    untouched_batch: int | None
    arms: tuple[ArmRow, ...]
    best: str | None
    advice_beside_best: SpeedRatio | None
    reason: str = ""

    @property
    def place(self) -> tuple[str, str, bool, int, str | None, str]:
        """What the row measures; a later row for the same place replaces it."""
        return self.workload, self.size, self.busy, self.repeat, self.time_limit, self.device

    @property
    def measured(self) -> SpeedRatio | None:
        """The advice compared with the unmodified file."""
        return next((one.beside for one in self.arms if one.name == ADVICE), None)

    @property
    def promise_is(self) -> str | None:
        """Whether the measured ratio is ``"inside"`` the promised interval, ``"above"`` or ``"below"`` it."""
        promise, measured = self.advice.promise, self.measured
        if promise is None or measured is None:
            return None
        if measured.ratio < promise.low:
            return "below"
        # Where the ends are far apart, the answer says "at least".
        return "above" if measured.ratio > promise.high and not promise.is_unsteady else "inside"


def leaders_of_set(arms: Sequence[ArmRow], most: int) -> list[str]:
    """The settings that may be the best, the one with the largest ratio first; the unmodified file's own ratio is 1.

    Args:
        arms: Arms compared with the unmodified file.
        most: Most settings to return, out of those whose interval overlaps the leader's.
    """
    found = {one.name: one.beside for one in arms if one.name != ADVICE and one.beside is not None}
    ratios = {UNTOUCHED.name: (1.0, 1.0, 1.0)} | {name: (one.ratio, one.low, one.high) for name, one in found.items()}
    first, *others = sorted(ratios, key=lambda name: ratios[name][0], reverse=True)
    _, low, _ = ratios[first]
    return [first, *(name for name in others if ratios[name][2] > low)][:most]


def read(path: Path) -> list[Row]:
    """The rows of a file, the last of each place, in the order in which places were first written."""
    return latest(read_runs(path))


def read_runs(path: Path) -> list[Row]:
    """All rows of a file in order, with those that were measured again since."""
    return json_lines.read(path, msgspec.json.Decoder(Row))
