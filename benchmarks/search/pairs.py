"""Two trainings in turn on the same devices: what one such comparison shows, and at which batches both fit.

Both live in one process group. Weights, gradients and optimizer states of both stay in memory; activations are only
held by the one whose turn it is. So the other's resident bytes are missing to each, and batches shrink by that.
"""

from __future__ import annotations

import math
import random

from advisor.search.sizing.memory_model import DEFAULT_MARGIN, round_batch
from advisor.search.space.space import Combination
from benchmarks.search.batches import Batches
from benchmarks.search.problem import Problem

__all__ = ["NOISE_OF_PAIR", "Pairs"]

NOISE_OF_PAIR = 0.75
"""Noise of a ratio over that of a trial. In the recorded tables, pairs that alternate for two or three seconds have
standard errors of 1.1 to 2.2 %, which is 0.2 to 0.74 times the noise of the same table's trials."""

_SHARES = tuple(share / 20 for share in range(20, 0, -1))
"""Shares of their own batches at which two trainings may be compared."""


class Pairs:
    """Comparisons of two combinations on the same number of devices.

    Args:
        problem: The problem.
        batches: Forecasts of what fits.
        seed: Seed of the noise.
        noise: Noise of a ratio over that of a trial.
    """

    def __init__(self, problem: Problem, batches: Batches, seed: int, noise: float = NOISE_OF_PAIR) -> None:
        self._problem = problem
        self._batches = batches
        self._seed = seed
        self.noise = noise * problem.noise

    def room(self, one: tuple[Combination, int], other: tuple[Combination, int]) -> tuple[int, int] | None:
        """The batches nearest to their own at which both are expected to fit together, if any.

        Args:
            one: A combination with its batch.
            other: Another one on as many devices.
        """
        (first, own), (second, others) = one, other
        if first.gpu_count != second.gpu_count:
            return None
        usable = self._problem.limit_bytes * (1 - DEFAULT_MARGIN)
        resident, beside = self._batches.peak(first, 0), self._batches.peak(second, 0)
        for share in _SHARES:
            a, b = max(1, round_batch(math.floor(share * own))), max(1, round_batch(math.floor(share * others)))
            need = max(self._batches.peak(first, a) + beside, self._batches.peak(second, b) + resident)
            if need <= usable:
                return a, b
        return None

    def ratio(self, one: tuple[Combination, int], other: tuple[Combination, int], number: int) -> float | None:
        """The measured throughput of one over the other's; ``None`` if either fails or memory does not hold both.

        Args:
            one: A combination with its batch.
            other: Another one.
            number: How often this pair was compared before: equal numbers give equal results.
        """
        (first, own), (second, others) = one, other
        rates = self._problem.rate(first, own), self._problem.rate(second, others)
        if min(rates) <= 0 or not self._fits(first, own, second, others):
            return None
        generator = random.Random(f"pair {self._seed} {sorted((first.label, second.label))} {number}")
        sign = 1 if first.label < second.label else -1
        return rates[0] / rates[1] * math.exp(sign * generator.gauss(0.0, self.noise))

    def _fits(self, first: Combination, own: int, second: Combination, others: int) -> bool:
        (peak, resident), (other_peak, other_resident) = self._memory(first, own), self._memory(second, others)
        return max(peak + other_resident, other_peak + resident) <= self._problem.limit_bytes

    def _memory(self, combination: Combination, batch: int) -> tuple[float, float]:
        """True peak and resident bytes: what a line through two batches leaves at none."""
        generator = random.Random(0)
        found = [self._problem.run(combination, one, generator).peak_bytes for one in (batch, 1)]
        assert found[0] is not None, "it ran"
        if batch == 1 or found[1] is None:
            return found[0], found[0]
        return found[0], found[1] - (found[0] - found[1]) / (batch - 1)
