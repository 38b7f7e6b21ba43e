"""What profiling runs and timed trials have shown about each combination: memory, time and first losses."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.decide.candidate import Candidate
from advisor.decide.drift import loss_drift
from advisor.measure.measurement import Measurement, Sizing
from advisor.policy.policy import Policy
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.trials.expected import seconds_at
from advisor.trial.outcome import Outcome
from advisor.trial.result import SizeResult, TimeResult

__all__ = ["Known", "ran_not_even_once"]


class Known:
    """The combinations that were sized at one model size.

    Args:
        earlier: Candidates of earlier runs at that size, from which the memory models learn again.
    """

    def __init__(self, earlier: Sequence[Candidate]) -> None:
        self._earlier = earlier
        self.sizings: dict[str, Sizing] = {}
        self.models: dict[str, MemoryModel] = {}

    def learn_sizing(self, combination: Combination, result: SizeResult, *, passes: int = 1) -> None:
        """Record the profiling runs of a combination, whose steps had so many micro-batches."""
        assert result.sizing is not None, "there were some"
        self.sizings[combination.label] = result.sizing
        model = MemoryModel.fit(result.sizing, result.prediction, passes=passes)
        for candidate in self._earlier:
            if Combination.of(candidate.policy) == combination:
                model = _learned(model, candidate.policy, candidate.outcome, candidate.measurement)
        self.models[combination.label] = model

    def learn_turns(self, combination: Combination, beside: MemoryModel | None) -> None:
        """Learn how long a step takes at the batch of its comparison, from that of what it alternated with."""
        model, last = self.models[combination.label], self.sizings[combination.label].points[-1]
        if beside is None or last.speedup is None or last.compared_at is None or last.compared_at <= model.timed_at:
            return
        seconds = seconds_at(beside, last.compared_at) / last.speedup.value
        self.models[combination.label] = model.timed(last.compared_at, 1, seconds)

    def learn_timing(self, policy: Policy, result: TimeResult) -> None:
        """Record a timed trial, if its combination was sized."""
        label = Combination.of(policy).label
        model = self.models.get(label)
        if model is None:
            return
        model = _learned(model, policy, result.outcome, result.measurement)
        if result.smaller is not None:
            # Its memory alone: the line of time goes through the larger batch.
            model = model.calibrated(result.smaller.micro_batch, result.smaller.memory.peak_bytes)
        for rung in result.ladder:
            one = rung.measurement
            model = model.calibrated(one.micro_batch, one.memory.peak_bytes)
            model = model.timed(one.micro_batch, one.accumulation_steps, one.step_seconds)
        self.models[label] = model

    def drift(self, combination: Combination, reference: Combination) -> float | None:
        """Loss drift between two combinations over the first steps of their profiling runs, if they compare."""
        plain, own = self.sizings.get(reference.label), self.sizings.get(combination.label)
        if plain is None or own is None or plain.points[0].micro_batch != own.points[0].micro_batch:
            return None
        return loss_drift(own.loss_trace, plain.loss_trace)


def ran_not_even_once(result: SizeResult) -> bool:
    """Whether profiling runs had no memory for a single step."""
    return result.outcome is Outcome.OUT_OF_MEMORY or (
        result.sizing is not None and not result.sizing.points and result.sizing.out_of_memory_at is not None
    )


def _learned(model: MemoryModel, policy: Policy, outcome: Outcome, measurement: Measurement | None) -> MemoryModel:
    if measurement is not None:
        model = model.calibrated(policy.micro_batch, measurement.memory.peak_bytes)
        return model.timed(policy.micro_batch, policy.accumulation_steps, measurement.step_seconds)
    if outcome is Outcome.OUT_OF_MEMORY:
        return model.after_out_of_memory(policy.micro_batch)
    return model
