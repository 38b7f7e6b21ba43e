"""Tell the search's model what came of a proposal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from advisor.decide.candidate import Candidate
from advisor.decide.drift import tolerance_beside_chance
from advisor.decide.eligible import is_faithful, is_measured
from advisor.decide.guard import drift_by_chance, refuted_drift
from advisor.decide.noise import noise_of
from advisor.decide.score import objectives
from advisor.goal import GoalKind
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Attribute, Proposal, Proposer
from advisor.session.context import StudyContext
from advisor.session.trials.candidates import Evaluation
from advisor.text.records import encode_record
from advisor.trial.outcome import Outcome

__all__ = ["Teaching"]

_NOISE_OF_PROFILING_RUNS = 0.1
"""Relative standard deviation of the throughput that two profiling runs predict."""


class Teaching:
    """Translates evaluations into the proposer's terms.

    Args:
        proposer: Learns from them.
        context: The study.
        memory_of: The memory model of a combination; ``None`` if it was not sized.
    """

    def __init__(
        self, proposer: Proposer, context: StudyContext, memory_of: Callable[[Combination], MemoryModel | None]
    ) -> None:
        self._proposer = proposer
        self._memory_of = memory_of
        self._goal = context.goal
        self._ledger = context.ledger

    def tell(
        self, proposal: Proposal, evaluation: Evaluation, found: Sequence[Candidate], candidate: Candidate
    ) -> None:
        """Report a proposal's best value, or the constraint that it violates.

        Args:
            proposal: What was asked for.
            evaluation: What came of it.
            found: Its candidates, as the guard left them.
            candidate: The best of them.
        """
        attributes: dict[str, Attribute] = {
            "policy": candidate.policy.label,
            "gpu_count": candidate.policy.gpu_count,
            "mesh": candidate.policy.axes.label(candidate.policy.gpu_count) or None,
            "micro_batch": candidate.policy.micro_batch,
            "accumulation_steps": candidate.policy.accumulation_steps,
            "outcome": candidate.outcome.value,
            "reason": candidate.reason,
            "trial": candidate.trial_key,
        }
        attributes |= self._memory(Combination.of(candidate.policy))
        if self._proposer.is_shared:
            attributes["record"] = encode_record(list(found)).decode()
        constraints: dict[str, float] = {}
        value: tuple[float, ...] | None = None
        noise: float | None = None
        limit = self._goal.limit_on(candidate.policy.gpu_count)
        if is_measured(candidate):
            assert candidate.measurement is not None
            largest = max(one.policy.micro_batch for one in found if is_measured(one))
            attributes["largest_batch"] = largest
            self.learn([one for one in found if one is not candidate], largest)
            value, noise = objectives(candidate, self._goal), noise_of(candidate.measurement, candidate.speedup)
            constraints["memory"] = candidate.measurement.memory.peak_bytes / limit - 1
            if candidate.guard is not None:
                constraints["fidelity"] = 0.0 if is_faithful(candidate, self._goal) else 1.0
            elif candidate.loss_drift is not None:
                constraints["loss_drift"] = candidate.loss_drift - self._tolerated(candidate)
        elif candidate.comparison is not None:
            value, noise = (candidate.comparison.expected_samples_per_second,), candidate.comparison.expected_error
            if candidate.loss_drift is not None:
                constraints["loss_drift"] = candidate.loss_drift - self._tolerated(candidate)
        elif candidate.outcome is Outcome.OUT_OF_MEMORY or candidate.predicted_peak_bytes is not None:
            need = candidate.predicted_peak_bytes
            over = 1.0 if need is None else need / limit - 1
            constraints["memory" if over > 0 else "speed"] = over if over > 0 else 1.0
            if evaluation.expected_rate is not None and self._goal.kind is GoalKind.FASTER:
                value, noise = (evaluation.expected_rate,), _NOISE_OF_PROFILING_RUNS
        else:
            constraints["outcome"] = 1.0
        self._proposer.tell(
            proposal,
            value,
            constraints,
            attributes,
            noise=noise,
            excludes_combination=evaluation.settles_combination,
            try_again=candidate.outcome.is_by_chance,
        )

    def rule_out(self, candidate: Candidate) -> None:
        """Report that a leader of which a forecast was told may not win: it does not run or trains wrongly."""
        violated = "fidelity" if is_measured(candidate) else "outcome"
        if candidate.outcome is Outcome.OUT_OF_MEMORY:
            violated = "memory"
        combination = Combination.of(candidate.policy)
        attributes: dict[str, Attribute] = {"outcome": candidate.outcome.value, "reason": candidate.reason}
        attributes |= self._memory(combination)
        self._proposer.rule_out(combination, violated, attributes, by_chance=candidate.outcome.is_by_chance)

    def _memory(self, combination: Combination) -> dict[str, Attribute]:
        """What the combination takes of the memory, if it was sized."""
        model = self._memory_of(combination)
        if model is None:
            return {}
        fixed, per_sample = model.shares(self._goal.limit_on(combination.gpu_count))
        return {"memory_fixed": fixed, "memory_per_sample": per_sample}

    def _tolerated(self, candidate: Candidate) -> float:
        known = self._ledger.candidates
        tolerated = tolerance_beside_chance(candidate.fidelity, drift_by_chance(known))
        return max(tolerated, refuted_drift(known, candidate.fidelity))

    def learn(self, others: Iterable[Candidate], largest_batch: int) -> None:
        """Report measurements beyond the proposer's own trials: other batches, leaders timed at length."""
        for one in others:
            if is_measured(one) and one.measurement is not None:
                combination = Combination.of(one.policy)
                sizes: dict[str, Attribute] = {
                    "micro_batch": one.policy.micro_batch,
                    "largest_batch": largest_batch,
                }
                self._proposer.learn(
                    combination,
                    objectives(one, self._goal),
                    sizes | self._memory(combination),
                    noise=noise_of(one.measurement, one.speedup),
                )
