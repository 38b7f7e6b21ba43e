"""The interface of the problems that strategies are evaluated on: run one combination at one batch; know the truth."""

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
        seconds: Measured step time, including noise; ``None`` if it did not run.
        peak_bytes: Peak memory of the step; ``None`` if it did not run.
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
        """Measured samples per second over all devices."""
        return None if self.seconds is None else self.combination.gpu_count * self.batch / self.seconds


class Problem(Protocol):
    """A workload with its search space, whose true answers are known."""

    @property
    def name(self) -> str:
        """Its name in results."""

    @property
    def space(self) -> ResolvedSpace:
        """The search space."""

    @property
    def limit_bytes(self) -> int:
        """The memory limit of each device."""

    @property
    def largest_batch(self) -> int:
        """Largest batch that may be requested."""

    @property
    def noise(self) -> float:
        """Relative standard deviation of one measurement, which a session estimates from the spread of steps."""

    @property
    def best_rate(self) -> float:
        """Samples per second of the exhaustive optimum."""

    def run(self, combination: Combination, batch: int, generator: random.Random) -> Trial:
        """One trial; ``generator`` draws its noise."""

    def rate(self, combination: Combination, batch: int) -> float:
        """Samples per second without noise; 0 if it does not run."""

    def forecast(self, combination: Combination) -> MemoryModel | None:
        """The memory forecast available before a trial; ``None`` if the combination does not run at all."""


def with_noise(seconds: float, noise: float, generator: random.Random) -> float:
    """A measured time: the true one times a log-normal factor with standard deviation ``noise``."""
    return seconds * math.exp(generator.gauss(0.0, noise))
