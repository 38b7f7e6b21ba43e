"""A problem of a few combinations that records requests."""

from __future__ import annotations

import random

from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Axis, Combination, ResolvedSpace
from advisor.trial.outcome import Outcome
from benchmarks.search.problem import Trial

from .tables import CHECKPOINT, header


class Toy:
    """One byte per sample (a tenth with checkpointing), and no constant part.

    Args:
        limit: Bytes that fit.
        promised: Ratio of forecast to actual bytes.
        fixed_seconds: Constant seconds of a step.
        sample_seconds: Seconds per sample.
        crashes: Label of a combination that crashes.
    """

    name = "toy"
    best_rate = 1.0
    noise = 0.02

    def __init__(
        self,
        *,
        limit: int = 20,
        promised: float = 1.0,
        fixed_seconds: float = 1.0,
        sample_seconds: float = 0.0,
        crashes: str = "",
        largest_batch: int = 64,
    ) -> None:
        self.limit_bytes = limit
        self.largest_batch = largest_batch
        self.space: ResolvedSpace = header(axes=(Axis(method="checkpoint", settings=(CHECKPOINT,)),)).space
        self.asked: list[tuple[str, int]] = []
        self._promised = promised
        self._seconds = Line(fixed_seconds, sample_seconds)
        self._crashes = crashes

    def run(self, combination: Combination, batch: int, generator: random.Random) -> Trial:
        self.asked.append((combination.label, batch))
        outcome = self._outcome(combination, batch)
        if outcome is not Outcome.OK:
            return Trial(combination=combination, batch=batch, outcome=outcome)
        seconds, peak = self._seconds.at(batch), round(self._bytes(combination) * batch)
        return Trial(combination=combination, batch=batch, outcome=outcome, seconds=seconds, peak_bytes=peak)

    def rate(self, combination: Combination, batch: int) -> float:
        return batch / self._seconds.at(batch) if self._outcome(combination, batch) is Outcome.OK else 0.0

    def forecast(self, combination: Combination) -> MemoryModel | None:
        passes = Line(0.0, self._bytes(combination) * self._promised)
        return MemoryModel(lines=(passes,), time=Line(0.0, 0.0))

    def _bytes(self, combination: Combination) -> float:
        return 0.1 if combination.settings else 1.0

    def _outcome(self, combination: Combination, batch: int) -> Outcome:
        if combination.label == self._crashes:
            return Outcome.CRASHED
        return Outcome.OUT_OF_MEMORY if self._bytes(combination) * batch > self.limit_bytes else Outcome.OK
