"""A simulated problem: a new workload and machine for every seed, with known answers.

Peak memory is a constant part (weights, gradients, optimizer state, sharded or not) plus activations in proportion to
the batch. A step takes a fixed time and a time per sample, each a product of the effects of the methods in use; a few
pairs of methods interact, and one pair crashes. The factors are drawn from ranges that measurements on GPUs have shown.
Memory forecasts are off by a few per cent, for all combinations together and for each. Measured times have 2 % noise.
It flatters strategies that assume products: recorded tables count more.
"""

from __future__ import annotations

import math
import random

import numpy as np

from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.trial.outcome import Outcome
from benchmarks.search.problem import Trial, with_noise
from benchmarks.search.simulated_space import Levels

__all__ = ["Simulator"]

_GIB = 2**30
_LARGEST_BATCH = 512
_INTERACTIONS = 10
_INTERACTION_SPREAD = 0.08
_UNEXPLAINED_SPREAD = 0.01
_CRASHES = {"small": (1, 6), "large": (2, 12)}
"""Number of pairs of methods that crash together, and the least number of combinations of levels of their methods."""
_NEARLY_FULL = 0.97
"""Fraction of memory above which the allocator flushes and retries, and the resulting slowdown."""
_RETRYING = 1.08
_ODD, _EVEN = 1.04, 1.02
"""The cost per sample of a batch that is not a multiple of 8, odd or even."""


class Simulator:
    """One problem.

    Args:
        seed: Equal seeds give equal problems.
        size: ``"small"`` (384 combinations) or ``"large"`` (73,728).
        noise: Standard deviation of a measured time's logarithm.
        levels: The combinations of that size, if they exist already; they are the same for all seeds.
    """

    def __init__(self, seed: int, size: str = "large", *, noise: float = 0.02, levels: Levels | None = None) -> None:
        self.name = f"simulated {size}"
        self.largest_batch = _LARGEST_BATCH
        self._levels = Levels(size) if levels is None else levels
        self.noise = noise
        generator = np.random.default_rng((seed, size == "large"))
        self.limit_bytes = int(generator.choice([24, 40, 80])) * _GIB
        self._draw_memory(generator)
        self._draw_time(generator)
        self._crashes = self._draw_crashes(generator, *_CRASHES[size])
        count = len(self._levels)
        self._forecast_factor = (1 + generator.normal(0, 0.04)) * (1 + generator.normal(0, 0.02, count))
        self.best_rate = self._best_rate()

    @property
    def space(self) -> ResolvedSpace:
        """The search space."""
        return self._levels.space

    def outcome(self, combination: Combination, batch: int) -> Outcome:
        """The outcome of a trial."""
        assert 1 <= batch <= self.largest_batch, f"a batch from 1 to {self.largest_batch}, got {batch}"
        row = self._levels.row(combination)
        if self._crashes[row]:
            return Outcome.CRASHED
        return Outcome.OUT_OF_MEMORY if self._peak(row, batch) > self.limit_bytes else Outcome.OK

    def rate(self, combination: Combination, batch: int) -> float:
        """Samples per second without noise; 0 if it does not run."""
        if self.outcome(combination, batch) is not Outcome.OK:
            return 0.0
        return combination.gpu_count * batch / self._seconds(self._levels.row(combination), batch)

    def run(self, combination: Combination, batch: int, generator: random.Random) -> Trial:
        """One trial, with noise."""
        outcome = self.outcome(combination, batch)
        if outcome is not Outcome.OK:
            return Trial(combination=combination, batch=batch, outcome=outcome)
        row = self._levels.row(combination)
        return Trial(
            combination=combination,
            batch=batch,
            outcome=outcome,
            seconds=with_noise(self._seconds(row, batch), self.noise, generator),
            peak_bytes=math.ceil(self._peak(row, batch)),
            flushed=self._is_nearly_full(row, batch),
        )

    def forecast(self, combination: Combination) -> MemoryModel | None:
        """A memory forecast with an error of a few per cent; it knows nothing about time."""
        row = self._levels.row(combination)
        factor = float(self._forecast_factor[row])
        return MemoryModel(
            lines=(Line(float(self._fixed[row]) * factor, float(self._growing[row]) * factor),),
            time=Line(0.0, 0.0),
        )

    def _peak(self, row: int, batch: int) -> float:
        return float(self._fixed[row] + self._growing[row] * batch)

    def _seconds(self, row: int, batch: int) -> float:
        alignment = 1.0 if batch % 8 == 0 else _EVEN if batch % 2 == 0 else _ODD
        seconds = self._fixed_seconds[row] + self._sample_seconds[row] * batch * alignment
        return float(seconds) * (_RETRYING if self._is_nearly_full(row, batch) else 1.0)

    def _is_nearly_full(self, row: int, batch: int) -> bool:
        return self._peak(row, batch) > _NEARLY_FULL * self.limit_bytes

    def _best_rate(self) -> float:
        """The optimum over all combinations and batches.

        Among batches of one alignment throughput rises with the batch as long as memory is not nearly full: the best is
        the largest batch of its alignment below one of the two limits.
        """
        best = 0.0
        for share in (_NEARLY_FULL, 1.0):
            reach = np.floor((share * self.limit_bytes - self._fixed) / self._growing)
            for step, alignment in ((8, 1.0), (2, _EVEN), (1, _ODD)):
                batch = np.minimum(reach, self.largest_batch) // step * step
                runs = (batch >= 1) & ~self._crashes
                seconds = self._fixed_seconds + self._sample_seconds * batch * alignment
                rates = self._levels.gpu_count * batch / seconds / (1.0 if share < 1 else _RETRYING)
                best = max(best, float(rates[runs].max(initial=0.0)))
        assert best > 0, "something runs"
        return best

    def _draw_memory(self, generator: np.random.Generator) -> None:
        codes, uniform = self._levels.codes, generator.uniform
        self._parameters = math.exp(uniform(math.log(0.12), math.log(2.5)))  # billions
        activations = math.exp(uniform(math.log(0.4), math.log(4.0)))  # GiB per sample, without any method
        gpus = self._levels.gpu_count
        way = self._levels.sharding
        precision = codes["precision"]
        weights = np.array([4, 4, 6, 2.0])[precision] / np.where(way >= 3, gpus, 1)
        gradients = np.array([4, 4, 4, 2.0])[precision] / np.where(way >= 2, gpus, 1)
        moments = np.where(codes["optimizer"] == 2, 2.0, np.where(precision == 3, 4.0, 8.0))
        moments = moments * np.where(codes["offload_optimizer"] == 1, 0, 1)
        temporaries = np.where(codes["optimizer"] == 0, uniform(0.3, 1.0) * 4, 0.0)
        states = (moments + temporaries) / np.where(way >= 1, gpus, 1)
        gathered = np.where(way >= 3, 0.6 * self._parameters / 8, 0)
        fixed = self._parameters * (weights + gradients + states) * 1e9 / _GIB + gathered + uniform(0.6, 1.2)
        growing = activations * np.array([1, 1, uniform(0.55, 0.7), uniform(0.48, 0.55)])[precision]
        growing = growing * np.array([1, uniform(0.4, 0.7), uniform(0.1, 0.25)])[codes["checkpoint"]]
        growing = growing * np.where(codes["offload_activations"] == 1, uniform(0.2, 0.5), 1)
        growing = growing * np.where(codes["flash_attention"] == 1, uniform(0.5, 0.8), 1)
        growing = growing * np.where(codes["chunked_loss"] == 1, uniform(0.7, 0.95), 1)
        growing = growing * np.where(codes["compile"] > 0, uniform(0.75, 0.95), 1)
        self._fixed: np.ndarray = fixed * _GIB
        self._growing: np.ndarray = growing * _GIB

    def _draw_time(self, generator: np.random.Generator) -> None:
        codes, uniform = self._levels.codes, generator.uniform
        precision, compiled = codes["precision"], codes["compile"]
        sample = self._parameters * uniform(0.02, 0.06) * np.ones(len(self._levels))
        sample = sample * np.array([1, uniform(0.45, 0.7), uniform(0.28, 0.4), uniform(0.26, 0.4)])[precision]
        sample = sample * np.array([1, uniform(1.05, 1.15), uniform(1.22, 1.36)])[codes["checkpoint"]]
        sample = sample * np.where(codes["offload_activations"] == 1, uniform(1.05, 1.7), 1)
        sample = sample * np.where(codes["flash_attention"] == 1, uniform(0.75, 0.95), 1)
        sample = sample * np.where(codes["chunked_loss"] == 1, uniform(0.93, 1.01), 1)
        sample = sample * np.array([1, uniform(0.65, 0.95), uniform(0.65, 0.95), uniform(0.6, 0.95)])[compiled]
        sample = sample * np.where(codes["channels_last"] == 1, uniform(0.9, 1.03), 1)
        fixed = (
            uniform(0.02, 0.12) * np.array([1, uniform(0.7, 0.95), uniform(0.25, 0.6), uniform(0.6, 0.95)])[compiled]
        )
        fixed = fixed * np.array([1, uniform(0.8, 0.95), uniform(1.1, 1.4)])[codes["optimizer"]]
        fixed = fixed * np.where(codes["checkpoint"] > 0, uniform(1.05, 1.2), 1)
        fixed = fixed + np.where(codes["offload_optimizer"] == 1, self._parameters * uniform(0.1, 0.4), 0)
        fixed = fixed + self._communication(generator)
        for _ in range(_INTERACTIONS):
            (one, level), (other, other_level) = self._pair(generator)
            both = (codes[one] == level) & (codes[other] == other_level)
            sample = sample * np.where(both, math.exp(generator.normal(0, _INTERACTION_SPREAD)), 1)
        self._sample_seconds: np.ndarray = sample * np.exp(generator.normal(0, _UNEXPLAINED_SPREAD, len(sample)))
        self._fixed_seconds: np.ndarray = fixed

    def _communication(self, generator: np.random.Generator) -> np.ndarray:
        """Communication time per step."""
        uniform = generator.uniform
        gpus = self._levels.gpu_count
        gigabytes = self._parameters * np.where(self._levels.codes["precision"] == 3, 2, 4) * 2 * (gpus - 1) / gpus
        slower = np.array([1, uniform(1.0, 1.15), uniform(1.0, 1.2), uniform(1.3, 1.8), uniform(1.05, 1.6)])
        seconds = gigabytes / uniform(10, 100) * slower[self._levels.sharding] * uniform(0.2, 0.8)
        return np.where(gpus > 1, seconds, 0.0)

    def _draw_crashes(self, generator: np.random.Generator, count: int, rarity: int) -> np.ndarray:
        """Combinations with a pair of methods that do not work together."""
        crashes = np.zeros(len(self._levels), dtype=bool)
        for _ in range(count):
            (one, level), (other, other_level) = self._pair(generator, rarity)
            crashes |= (self._levels.codes[one] == level) & (self._levels.codes[other] == other_level)
        return crashes

    def _pair(self, generator: np.random.Generator, rarity: int = 1) -> tuple[tuple[str, int], tuple[str, int]]:
        """Two different methods in use, each at one level, with at least that many combinations together."""
        pairs = self._levels.pairs()
        while True:
            first, second = (pairs[int(index)] for index in generator.choice(len(pairs), 2, replace=False))
            ways = self._levels.offered(first[0]) * self._levels.offered(second[0])
            if first[0] != second[0] and ways >= rarity:
                return first, second
