"""Results of replays: a line of JSON for each problem and strategy, and the statistics on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import json_lines

__all__ = ["COMPARISON", "EARLY", "NEAR", "Result", "quantile", "read", "write"]

NEAR = 0.98
"""Fraction of the exhaustive optimum at which a search has converged."""

EARLY = 30
"""Trials within which nearly every search should converge."""

_LATER = 40
"""Trials within which a search of a large space should converge."""


COMPARISON = 0.2
"""Time of a comparison, in trials."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy on one problem, over several seeds.

    Attributes:
        problem: Name of the problem.
        combinations: Number of its combinations, regardless of batch.
        strategy: Name of the strategy.
        budget: Most trials of each seed; since 2026-11-26 with comparisons, each a fifth of one.
        reached: For each seed: trials until the best so far was truly within 2 % of the exhaustive optimum, or
            ``None``.
        spent: For each seed: trials that were run.
        out_of_memory: For each seed: trials among them that ran out of memory.
        failed: For each seed: trials that crashed or failed otherwise.
        recorded_on: Device of a recorded table; empty for a simulated problem.
        recorded: Date of that recording; empty for a simulated problem.
        recorded_noise: Relative standard deviation of one measurement in it; ``None`` for a simulated problem.
        noise: Noise of one measurement in the replay, if different from the recording's own.
        compared: For each seed: comparisons (which are not trials) until convergence; empty if none are made.
        worth: For each seed: the true value of the answer after 30 trials, as a fraction of the exhaustive optimum.
        versions: Package -> version of the search.
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
        """Trials until half of the seeds had converged; infinite if they never did."""
        return quantile(self.reached, 0.5)

    @property
    def percentile_95(self) -> float:
        """Trials until 95 % of the seeds had converged; infinite if they never did."""
        return quantile(self.reached, 0.95)

    @property
    def median_with_comparisons(self) -> float:
        """The median of trials until convergence, with each comparison counted as a fifth of a trial."""
        return quantile(self._with_comparisons, 0.5)

    @property
    def _with_comparisons(self) -> list[float | None]:
        compared = self.compared or (0,) * len(self.reached)
        spent = zip(self.reached, compared, strict=True)
        return [None if trials is None else trials + COMPARISON * (made or 0) for trials, made in spent]

    @property
    def within_thirty(self) -> float:
        """Fraction of the seeds that had converged after 30 trials, comparisons included."""
        return sum(number is not None and number <= EARLY for number in self._with_comparisons) / len(self.reached)

    @property
    def within_forty(self) -> float:
        """Fraction of the seeds that had converged after 40 trials, comparisons included."""
        return sum(number is not None and number <= _LATER for number in self._with_comparisons) / len(self.reached)

    @property
    def out_of_memory_share(self) -> float:
        """Fraction of all trials that ran out of memory."""
        return sum(self.out_of_memory) / max(1, sum(self.spent))

    @property
    def failed_share(self) -> float:
        """Fraction of all trials that crashed or failed otherwise."""
        return sum(self.failed) / max(1, sum(self.spent))


def quantile(reached: Sequence[float | None], share: float) -> float:
    """The smallest number of trials after which at least this fraction of the seeds had converged; may be infinite."""
    ordered = sorted(math.inf if number is None else number for number in reached)
    return ordered[max(1, math.ceil(share * len(ordered) - 1e-9)) - 1]


def read(path: Path) -> list[Result]:
    """The results in a file; none if it does not exist."""
    return json_lines.read(path, msgspec.json.Decoder(Result))


def write(path: Path, results: Sequence[Result]) -> None:
    """Write results to a file, replacing older ones of the same problem, noise and strategy."""
    kept = {(one.problem, one.noise, one.strategy): one for one in (*read(path), *results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in kept.values()))
