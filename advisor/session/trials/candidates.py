"""Make a policy's candidate from the result of its trial, or from the reason why there was none."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.decide.effects import saved_nothing
from advisor.goal import Fidelity, Goal
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import DATA_ONLY
from advisor.measure.measurement import Measurement
from advisor.methods.catalogue import get_method
from advisor.methods.compose import draws_other_masks, judge, worst_fidelity
from advisor.policy.policy import Policy
from advisor.search.sizing.batching import Batch, does_not_fit
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.trials.trials import Trials
from advisor.text.units import format_bytes
from advisor.trial.outcome import Outcome
from advisor.trial.result import SizeResult, TimeResult
from advisor.workload.facts import Facts

__all__ = ["CandidateMaker", "Evaluation"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, and whether it settles its combination.

    Attributes:
        settles_combination: Whether no other batch of the same methods needs to be tried.
        smaller: The same methods at a smaller batch, timed in the same trial.
        expected_rate: Samples per second that profiling runs promise, where it was not measured for being too slow.
    """

    candidate: Candidate
    settles_combination: bool = False
    before: tuple[Candidate, ...] = ()
    smaller: Candidate | None = None
    expected_rate: float | None = None


@dataclass
class CandidateMaker:
    """Describes policies as candidates, of a model of one size. It runs no trial."""

    trials: Trials
    goal: Goal
    facts: Facts
    hardware: Hardware
    model_size: dict[str, int | float] = field(default_factory=dict)

    def timed(self, policy: Policy, role: Role, result: TimeResult, measurement: Measurement | None) -> Candidate:
        """A candidate measured by a timed trial, at the policy's own batch or the smaller one."""
        return Candidate(
            policy=policy,
            role=role,
            outcome=result.outcome,
            reason=result.reason,
            measurement=measurement,
            fidelity=self._fidelity(policy),
            loss_drift=self._drift(policy),
            model_size=self.model_size,
            notes=(*self.effects(Combination.of(policy)), *result.notes),
            trial_key=result.key,
            speedup=result.speedup if measurement is result.measurement else result.smaller_speedup,
        )

    def failed_sizing(self, policy: Policy, role: Role, result: SizeResult) -> Candidate:
        """A combination whose profiling runs did not get past the first batch."""
        # A trial that succeeded has found that not even one sample fits.
        outcome = Outcome.OUT_OF_MEMORY if result.outcome is Outcome.OK else result.outcome
        reason = result.reason
        if outcome is Outcome.OUT_OF_MEMORY and not reason:
            reason = does_not_fit(need_bytes=None, limit_bytes=self.goal.limit_on(policy.gpu_count))
        return self.unmeasured(policy, role, outcome, reason, None)

    def refusal(self, policy: Policy) -> str | None:
        """Why this policy is forbidden although its methods apply: accumulation, or its fidelity."""
        verdict = judge(
            policy.methods,
            facts=self.facts,
            hardware=self.hardware,
            accumulation_steps=policy.accumulation_steps,
            gpu_count=policy.gpu_count,
            mesh=policy.axes,
        )
        if not verdict.applicable:
            return verdict.reason
        uncut = self.facts.batch_layout.why_uncut
        if uncut and policy.accumulation_steps * policy.data_degree > 1:
            return f"a batch must be cut into parts, and this one cannot be: {uncut}"
        fidelity = self._fidelity(policy)
        if not self.goal.fidelity.allows(fidelity):
            parts = "micro-batches per step" if policy.data_degree == 1 else "parts of a step, over all devices,"
            changes = self.facts.batch_layout.changes_when_split
            why = f"; {changes}" if changes else ""
            why = "; BatchNorm takes its statistics over each" if self.facts.has_batchnorm else why
            return (
                f"with {policy.accumulation_steps * policy.data_degree} {parts} its fidelity is {fidelity.value}, "
                f"and at most {self.goal.fidelity.value} is allowed{why} (--fidelity {fidelity.value} allows it)"
            )
        return None

    def too_big(self, policy: Policy, role: Role, model: MemoryModel) -> Candidate:
        """A policy that is predicted not to fit."""
        predicted, limit = model.predict(policy.micro_batch), self.goal.limit_on(policy.gpu_count)
        if model.out_of_memory_at is not None and predicted <= limit:
            # Something else holds the memory, or takes it at that batch, which the prediction does not see.
            reason = f"a micro-batch of {model.out_of_memory_at} ran out of memory, below {format_bytes(limit)}"
            return self.unmeasured(policy, role, Outcome.OUT_OF_MEMORY, reason, None)
        if model.most_samples is not None and predicted <= limit:
            reason = f"a micro-batch of {policy.micro_batch} cannot be filled: {self.trials.runs.why_no_more}"
            return self.unmeasured(policy, role, Outcome.REFUSED, reason, None)
        reason = does_not_fit(need_bytes=predicted, limit_bytes=limit, micro_batch=policy.micro_batch)
        return self.unmeasured(policy, role, Outcome.SCREENED, reason, predicted)

    def unmeasured(
        self, policy: Policy, role: Role, outcome: Outcome, reason: str, predicted_peak_bytes: int | None
    ) -> Candidate:
        """A candidate without measurements."""
        return Candidate(
            policy=policy,
            role=role,
            outcome=outcome,
            reason=reason,
            predicted_peak_bytes=predicted_peak_bytes,
            fidelity=self._fidelity(policy),
            loss_drift=self._drift(policy),
            model_size=self.model_size,
        )

    def _drift(self, policy: Policy) -> float | None:
        """Drift of its first losses; ``None`` where they differ from plain training's by chance alone."""
        if draws_other_masks(policy.methods, self.facts):
            return None
        return self.trials.drift(Combination.of(policy))

    def _fidelity(self, policy: Policy) -> Fidelity:
        return worst_fidelity(
            policy.methods,
            accumulation_steps=policy.accumulation_steps,
            facts=self.facts,
            gpu_count=policy.gpu_count,
            mesh=policy.axes,
        )

    def effects(self, combination: Combination) -> tuple[str, ...]:
        """Notes of methods that were applied but changed nothing."""
        reference = self.trials.reference(combination.data_degree)
        if reference is None or combination == reference or combination.mesh != DATA_ONLY:
            return ()  # on another mesh everything takes other memory
        own, plain = self.trials.sizing_of(combination), self.trials.sizing_of(reference)
        if own is None or plain is None:
            return ()
        methods = [get_method(setting.name) for setting in combination.settings if setting not in reference.settings]
        return saved_nothing([method for method in methods if not method.distributes], own, plain)

    def policy(self, combination: Combination, batch: Batch) -> Policy:
        """The policy with the settings its methods chose in profiling runs, whose memory predictions hold for those."""
        sizing = self.trials.sizing_of(combination)
        settled = None if sizing is None else sizing.settled
        return combination.policy(batch.micro_batch, batch.accumulation_steps, settled=settled)
