"""Problems generated from seeds, to evaluate a search on problems it was not developed on.

They do not imitate real methods: spaces have from three hundred to a hundred thousand combinations, on one device or up
to eight, and main effects come from one of several families (:mod:`benchmarks.search.families`). A setting acts
independently on the time per sample, the fixed time per step, and memory. Pairs and triples of settings interact; some
settings only pay off together, some pairs crash, some settings always crash or fill the memory, and some only pay off
above a certain batch. The noise of a measurement is 1 to 10 %, different in each problem, and so is the memory that is
left for plain training, which may not fit.

The rule: seeds below 1,000 with the families of ``DEVELOPMENT`` are for development, and may be looked at and tuned to.
Seeds from 8,000,000 on, and the families of ``HELD_BACK``, are held out. They are run once a search is finished, the
result is reported, and nothing in the search is changed because of it; otherwise the next evaluation needs another
range. The seeds from each lower million on and the families of ``SPENT`` were used to judge earlier searches; none was
developed on those of ``HELD_BACK``.
"""

from __future__ import annotations

import math
import random

import numpy as np

from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.trial.outcome import Outcome
from benchmarks.search.families import DEVELOPMENT, FAMILIES, HELD_BACK, SPENT
from benchmarks.search.generated_space import GeneratedSpace, Setting
from benchmarks.search.problem import Trial, with_noise

__all__ = ["FIRST_HELD_BACK", "HELD_BACK_NAME", "Generated"]

FIRST_HELD_BACK = 8_000_000
"""Seeds from here on are held out; they also have families of their own."""

HELD_BACK_NAME = "generated, held back"

_GIB = 2**30
_LARGEST_BATCH = 512
_LIMIT = 24 * _GIB
_PAYS_TOGETHER = 1 / 3
"""Fraction of the problems with two settings that cost time on their own and save much of it together."""

_NEARLY_FULL, _RETRYING = 0.97, 1.08
"""Fraction of memory above which the allocator flushes and retries, and the resulting slowdown of a step."""


class Generated:
    """One problem.

    Args:
        seed: Equal seeds give equal problems. Those from :data:`FIRST_HELD_BACK` on may have any family, others only
            development families.
    """

    def __init__(self, seed: int) -> None:
        held_back = seed >= FIRST_HELD_BACK
        generator = np.random.default_rng(seed)
        families = (*DEVELOPMENT, *SPENT, *HELD_BACK) if held_back else DEVELOPMENT
        self.family = families[seed % len(families)]
        self.name = HELD_BACK_NAME if held_back else "generated, for developing"
        self.largest_batch = _LARGEST_BATCH
        self.noise = math.exp(generator.uniform(math.log(0.01), math.log(0.1)))
        self._rows = GeneratedSpace(generator)
        draw = FAMILIES[self.family]
        self._effects: dict[Setting, float] = {}
        for method, size in enumerate(self._rows.sizes[:-1]):
            drawn = draw(generator, size)
            self._effects |= {(method, level): float(drawn[level - 1]) for level in range(1, size + 1)}
        self._draw_time(generator)
        self._draw_memory(generator)
        self._crashes = ~self._rows.allowed | self._drawn_crashes(generator)
        least = float((self._fixed_bytes + self._growing_bytes)[~self._crashes].min())
        self.limit_bytes = max(_LIMIT, math.ceil(least / _NEARLY_FULL))  # something runs
        self._thresholds = [
            (self._rows.uses(setting), int(generator.choice([8, 16, 32, 64])), math.exp(-generator.exponential(0.15)))
            for setting in self._rows.some(generator, min(2, len(self._rows.sizes) - 1))
        ]
        count = len(self._rows)
        self._forecast_factor = (1 + generator.normal(0, 0.03)) * (1 + generator.normal(0, 0.02, count))
        self.space: ResolvedSpace = self._rows.resolved(self.name, self._rows.recipes(generator, self._effects))
        self.best_rate = self._best_rate()

    def outcome(self, combination: Combination, batch: int) -> Outcome:
        """The outcome of a trial."""
        row = self._rows.row(combination)
        if self._crashes[row]:
            return Outcome.CRASHED
        return Outcome.OUT_OF_MEMORY if self._peak(row, batch) > self.limit_bytes else Outcome.OK

    def rate(self, combination: Combination, batch: int) -> float:
        """Samples per second without noise; 0 if it does not run."""
        if self.outcome(combination, batch) is not Outcome.OK:
            return 0.0
        return combination.gpu_count * batch / self._seconds(self._rows.row(combination), batch)

    def run(self, combination: Combination, batch: int, generator: random.Random) -> Trial:
        """One trial, with noise."""
        outcome = self.outcome(combination, batch)
        if outcome is not Outcome.OK:
            return Trial(combination=combination, batch=batch, outcome=outcome)
        row = self._rows.row(combination)
        peak = self._peak(row, batch)
        return Trial(
            combination=combination,
            batch=batch,
            outcome=outcome,
            seconds=with_noise(self._seconds(row, batch), self.noise, generator),
            peak_bytes=math.ceil(peak),
            flushed=peak > _NEARLY_FULL * self.limit_bytes,
        )

    def forecast(self, combination: Combination) -> MemoryModel | None:
        """A memory forecast with an error of a few per cent; it knows nothing about time."""
        row = self._rows.row(combination)
        factor = float(self._forecast_factor[row])
        line = Line(float(self._fixed_bytes[row]) * factor, float(self._growing_bytes[row]) * factor)
        return MemoryModel(lines=(line,), time=Line(0.0, 0.0))

    def _peak(self, row: int, batch: int) -> float:
        return float(self._fixed_bytes[row] + self._growing_bytes[row] * batch)

    def _seconds(self, row: int, batch: int) -> float:
        each = float(self._sample_seconds[row])
        for settings, threshold, factor in self._thresholds:
            each *= factor if settings[row] and batch >= threshold else 1.0
        full = self._peak(row, batch) > _NEARLY_FULL * self.limit_bytes
        return (float(self._fixed_seconds[row]) + each * batch) * (_RETRYING if full else 1.0)

    def _best_rate(self) -> float:
        """Over all combinations and batches: throughput rises with the batch until memory is nearly full."""
        best = 0.0
        for share in (_NEARLY_FULL, 1.0):
            fits = np.floor((share * self.limit_bytes - self._fixed_bytes) / self._growing_bytes)
            batch = np.minimum(fits, self.largest_batch)
            each = self._sample_seconds.copy()
            for settings, threshold, factor in self._thresholds:
                each *= np.where(settings & (batch >= threshold), factor, 1.0)
            seconds = (self._fixed_seconds + each * batch) * (1.0 if share < 1 else _RETRYING)
            runs = (batch >= 1) & ~self._crashes
            best = max(best, float((self._rows.gpu_count * batch / seconds)[runs].max(initial=0.0)))
        assert best > 0, "something runs"
        return best

    def _draw_time(self, generator: np.random.Generator) -> None:
        rows, count = self._rows, len(self._rows)
        sample, fixed = np.zeros(count), np.zeros(count)
        for setting, effect in self._effects.items():
            sample += rows.uses(setting) * effect
            fixed += rows.uses(setting) * (0.5 * effect + generator.normal(0, 0.15))
        for size, most, spread in ((2, len(rows.settings), 0.08), (3, 4, 0.12)):
            for _ in range(int(generator.integers(0, most + 1)) if len(rows.sizes) > size else 0):
                sample += rows.both(*rows.some(generator, size)) * generator.normal(0, spread)
        if generator.random() < _PAYS_TOGETHER and len(rows.sizes) > 2:
            one, other = rows.some(generator, 2)
            alone, together = generator.uniform(0.05, 0.2), -generator.uniform(0.1, 0.4)
            first, second = rows.uses(one), rows.uses(other)
            sample += np.where(first & second, together, np.where(first | second, alone, 0.0))
        ways = generator.normal(0, 0.1, rows.sizes[-1] + 1) * (np.arange(rows.sizes[-1] + 1) > 0)
        devices = np.log(rows.gpu_count)
        sample += ways[rows.codes[:, -1]] + generator.uniform(0.0, 0.3) * devices
        self._sample_seconds: np.ndarray = 0.01 * np.exp(sample + generator.normal(0, 0.01, count))
        # The number of samples that take as long as the fixed time per step.
        samples = math.exp(generator.uniform(math.log(0.5), math.log(30)))
        self._fixed_seconds: np.ndarray = 0.01 * samples * np.exp(fixed)

    def _draw_memory(self, generator: np.random.Generator) -> None:
        rows = self._rows
        growing, fixed = np.zeros(len(rows)), np.zeros(len(rows))
        for setting, effect in self._effects.items():
            # What costs time often saves memory: otherwise nobody would use it.
            growing += rows.uses(setting) * (-0.8 * max(effect, 0.0) + generator.normal(0, 0.2))
            fixed += rows.uses(setting) * generator.normal(-0.03, 0.1)
        if generator.random() < 0.3:  # A setting that needs memory of its own.
            fixed += rows.uses(rows.some(generator, 1)[0]) * generator.uniform(0.3, 1.0)
        plain = 0.7 if generator.random() < 0.15 else math.exp(generator.uniform(math.log(8), math.log(150)))
        share = generator.uniform(0.1, 0.7)
        self._fixed_bytes: np.ndarray = share * _LIMIT * np.exp(fixed)
        self._growing_bytes: np.ndarray = (1 - share) * _LIMIT / plain * np.exp(growing)

    def _drawn_crashes(self, generator: np.random.Generator) -> np.ndarray:
        """Combinations with a pair that does not work together, or a setting that never works."""
        rows = self._rows
        crashes = np.zeros(len(rows), dtype=bool)
        for _ in range(int(generator.integers(0, 5))):
            crashes |= rows.both(*rows.some(generator, 2))
        if generator.random() < 0.3 and len(rows.settings) > 5:
            crashes |= rows.uses(rows.some(generator, 1)[0])
        return crashes
