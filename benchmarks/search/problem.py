"""What a search strategy is judged on: something that runs one combination at one batch and knows the truth."""

from __future__ import annotations

import math
import random
from typing import Protocol

import msgspec

from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.trial.outcome import Outcome

__all__ = ["Problem", "Trial", "with_noise"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One combination, run at one batch.

    Attributes:
        combination: The methods and the number of devices.
        batch: Samples per step of each device.
        outcome: How it ended.
        seconds: Of a step, as it was measured, noise included; ``None`` when it did not run.
        peak_bytes: Peak of the step; likewise.
        flushed: Whether memory was so nearly full that the allocator had to flush its cache.
    """

    combination: Combination
    batch: int
    outcome: Outcome
    seconds: float | None = None
    peak_bytes: int | None = None
    flushed: bool = False

    @property
    def rate(self) -> float | None:
        """Samples per second over all devices, as measured."""
        return None if self.seconds is None else self.combination.gpu_count * self.batch / self.seconds


class Problem(Protocol):
    """A workload with its search space, of which every answer is known."""

    @property
    def name(self) -> str:
        """What it is called in results."""

    @property
    def space(self) -> ResolvedSpace:
        """What may be combined."""

    @property
    def limit_bytes(self) -> int:
        """The memory limit of each device."""

    @property
    def largest_batch(self) -> int:
        """No batch above this one may be asked for."""

    @property
    def noise(self) -> float:
        """Relative standard deviation of one measurement, which a session tells from the spread of steps."""

    @property
    def best_rate(self) -> float:
        """Samples per second of the exhaustive best."""

    def run(self, combination: Combination, batch: int, generator: random.Random) -> Trial:
        """One trial; ``generator`` draws its noise."""

    def rate(self, combination: Combination, batch: int) -> float:
        """Samples per second without noise; 0 where it does not run."""

    def forecast(self, combination: Combination) -> MemoryModel | None:
        """What is known of its memory before a trial; ``None`` when it does not run at all."""


def with_noise(seconds: float, noise: float, generator: random.Random) -> float:
    """A time as one measurement would have it: off by a factor whose logarithm has the standard deviation ``noise``."""
    return seconds * math.exp(generator.gauss(0.0, noise))
