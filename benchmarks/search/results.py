"""What replays found: a line of JSON for each problem and strategy, and what is read from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

__all__ = ["NEAR", "SOON", "Result", "quantile", "read", "write"]

NEAR = 0.98
"""Share of the exhaustive best from which on a search has arrived."""

SOON = 30
"""Trials within which nearly every search should have arrived."""

_LATER = 40
"""Trials within which a search of a large space should have arrived."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy on one problem, over several seeds.

    Attributes:
        problem: Name of the problem.
        combinations: Its combinations, whatever the batch.
        strategy: Name of the strategy.
        budget: Most trials of each seed.
        reached: For each seed: trials until the best so far was truly within 2 % of the exhaustive best, or ``None``.
        spent: For each seed: trials that were run.
        out_of_memory: For each seed: trials among them that ran out of memory.
        failed: For each seed: trials that crashed or failed otherwise.
        recorded_on: Device of a recorded table; empty for a simulated problem.
        recorded: Date of that recording; likewise.
        recorded_noise: Relative standard deviation of one measurement in it; ``None`` for a simulated problem.
        noise: Of one measurement in the replay, where it is not the recording's own.
        compared: For each seed: comparisons, which are no trials, until the same; empty where none are made.
        worth: For each seed: what the answer after 30 trials is truly worth, as a share of the exhaustive best.
        versions: Package -> version of what ran the search.
        date: ISO date of the replay.
    """

    problem: str
    combinations: int
    strategy: str
    budget: int
    reached: tuple[int | None, ...]
    spent: tuple[int, ...]
    out_of_memory: tuple[int, ...]
    failed: tuple[int, ...]
    recorded_on: str = ""
    recorded: str = ""
    recorded_noise: float | None = None
    noise: float | None = None
    compared: tuple[int | None, ...] = ()
    worth: tuple[float, ...] = ()
    versions: dict[str, str]
    date: str

    @property
    def median(self) -> float:
        """Trials until half of the seeds had arrived; infinite when they never did."""
        return quantile(self.reached, 0.5)

    @property
    def late(self) -> float:
        """Trials until 95 % of the seeds had arrived; likewise."""
        return quantile(self.reached, 0.95)

    @property
    def soon(self) -> float:
        """Share of the seeds that had arrived after 30 trials."""
        return sum(number is not None and number <= SOON for number in self.reached) / len(self.reached)

    @property
    def within_forty(self) -> float:
        """Share of the seeds that had arrived after 40 trials."""
        return sum(number is not None and number <= _LATER for number in self.reached) / len(self.reached)

    @property
    def lost(self) -> float:
        """Share of all trials that ran out of memory."""
        return sum(self.out_of_memory) / max(1, sum(self.spent))

    @property
    def broken(self) -> float:
        """Share of all trials that crashed or failed otherwise."""
        return sum(self.failed) / max(1, sum(self.spent))


def quantile(reached: Sequence[float | None], share: float) -> float:
    """The least number of trials after which at least this share of the seeds had arrived; infinite if too few did."""
    ordered = sorted(math.inf if number is None else number for number in reached)
    return ordered[max(1, math.ceil(share * len(ordered) - 1e-9)) - 1]


def read(path: Path) -> list[Result]:
    """The results in a file; none when there is no file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()]


def write(path: Path, results: Sequence[Result]) -> None:
    """Put results into a file, in place of older ones of the same problem, noise and strategy."""
    kept = {(one.problem, one.noise, one.strategy): one for one in (*read(path), *results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in kept.values()))
