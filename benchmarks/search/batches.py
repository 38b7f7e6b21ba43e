"""The largest batch of a combination: its forecast, corrected by the trials so far."""

from __future__ import annotations

import math
import statistics

import msgspec

from advisor.search.propose.history import MEMORY_FIXED, MEMORY_PER_SAMPLE
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome
from benchmarks.search.problem import Problem, Trial

__all__ = ["Batches"]


class Batches:
    """Forecasts of one problem, which learn from trials.

    Two corrections are added to a prediction: a combination that was run has its own; one that was not has the median
    error of all trials so far. A trial that ran out of memory was off by at least the missing bytes.

    Args:
        problem: The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._models: dict[str, MemoryModel] = {}
        self._errors: list[float] = []

    @property
    def forecasts(self) -> int:
        """Number of combinations that were forecast."""
        return len(self._models)

    def largest(self, combination: Combination) -> int:
        """The largest batch that is expected to fit; 0 if none is, or if the combination is known to fail."""
        model = self.corrected(combination)
        if model is None:
            return 0
        return min(model.largest_batch(self._problem.limit_bytes), self._problem.largest_batch)

    def peak(self, combination: Combination, batch: int) -> float:
        """Predicted bytes of a combination at a batch; infinite if it is known to fail."""
        model = self.corrected(combination)
        return math.inf if model is None else model.predict(batch)

    def attributes(self, combination: Combination) -> dict[str, float]:
        """What is predicted of its memory, in the proposer's format; empty if it is known to fail."""
        model = self.corrected(combination)
        if model is None:
            return {}
        fixed, per_sample = model.shares(self._problem.limit_bytes)
        return {MEMORY_FIXED: fixed, MEMORY_PER_SAMPLE: per_sample}

    def corrected(self, combination: Combination) -> MemoryModel | None:
        """The corrected forecast; ``None`` if the combination is known to fail."""
        label = combination.label
        if label not in self._models:
            forecast = self._problem.forecast(combination)
            if forecast is None:
                return None
            self._models[label] = forecast
        model = self._models[label]
        if model.calibrated_at == 0 and self._errors:
            model = msgspec.structs.replace(model, offset_bytes=statistics.median(self._errors))
        return model

    def learn(self, trial: Trial) -> None:
        """Learn from a trial of a combination that was forecast."""
        label = trial.combination.label
        model = self._models[label]
        predicted = msgspec.structs.replace(model, offset_bytes=0.0).predict(trial.batch)
        if trial.peak_bytes is not None:
            self._errors.append(trial.peak_bytes - predicted)
            self._models[label] = model.calibrated(trial.batch, trial.peak_bytes)
        elif trial.outcome is Outcome.OUT_OF_MEMORY:
            self._errors.append(max(0.0, self._problem.limit_bytes - predicted))
            self._models[label] = model.after_out_of_memory(trial.batch)
