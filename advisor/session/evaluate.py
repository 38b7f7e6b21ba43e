"""From a combination of methods to a candidate: size it, choose its batch, judge it, time it."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.decide.effects import changed_nothing
from advisor.methods.catalogue import get_method
from advisor.methods.compose import judge, worst_fidelity
from advisor.methods.use import MethodUse
from advisor.policy.policy import Policy
from advisor.problem.facts import Facts
from advisor.problem.goal import Fidelity, Goal
from advisor.problem.hardware import Hardware
from advisor.problem.units import format_rate
from advisor.report.progress import Progress
from advisor.search.batching import Batch, choose_batch, does_not_fit
from advisor.search.memory_model import MemoryModel, round_batch
from advisor.session.budget import TimeBudget
from advisor.session.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TrialResult

__all__ = ["Evaluation", "Evaluator"]

_ANOTHER_BATCH_WILL_NOT_HELP = (Outcome.FAILED, Outcome.DIVERGED, Outcome.CRASHED)

_HOPELESS = 0.5
"""A combination whose short runs predict less than this share of the best throughput is not timed: predictions from
two measured batches are about 10 % off, so that nothing near the best is lost."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, and whether it settles its combination.

    Attributes:
        candidate: What became of the policy.
        settles_combination: Whether no other batch of the same methods needs to be tried.
        before: Candidates that were tried on the way to it.
    """

    candidate: Candidate
    settles_combination: bool = False
    before: tuple[Candidate, ...] = ()


class Evaluator:
    """Turns combinations into candidates. Every way to end has an outcome and a reason.

    Args:
        trials: Runs the trials.
        budget: The session's clock.
        goal: The goal and its limits.
        facts: What the probe learned.
        hardware: The device.
        progress: Told what is under way.
        pace: What ``best`` is called where a combination is too slow for it.
        where: Behind what is being done, for the display (``" at layers=24"``).

    Attributes:
        notes: What the user should know about how batches were chosen.
        number: Number of the candidate under way, for the display.
    """

    def __init__(
        self,
        *,
        trials: Trials,
        budget: TimeBudget,
        goal: Goal,
        facts: Facts,
        hardware: Hardware,
        progress: Progress,
        pace: str = "the best so far reached",
        where: str = "",
    ) -> None:
        self._trials = trials
        self._budget = budget
        self._goal = goal
        self._facts = facts
        self._hardware = hardware
        self._progress = progress
        self._pace = pace
        self._where = where
        self.notes: list[str] = []
        self.number = 1

    def own_batch(self) -> Batch | None:
        """The user's own batch: ``BATCH_SIZE``; under a global batch, as few passes over that as divide it."""
        own = self._facts.default_batch
        if own is None or self._goal.global_batch is None:
            return None if own is None else Batch(own)
        return choose_batch(largest=own, fraction=1.0, global_batch=self._goal.global_batch)

    def baseline(self) -> Candidate | None:
        """Plain training at the user's own batch; ``None`` when the workload states none."""
        batch = self.own_batch()
        if batch is None:
            return None
        model, failure = self._size((), Role.BASELINE)
        if model is None:
            return failure
        policy = Policy(micro_batch=batch.micro_batch, accumulation_steps=batch.accumulation_steps)
        fits = model.largest_batch(self._goal.memory_limit_bytes, margin=0.0, rounded=False)
        if fits < batch.micro_batch:
            return self._too_big(policy, Role.BASELINE, model)
        return self.time(policy, Role.BASELINE, best=None)

    def evaluate(self, uses: tuple[MethodUse, ...], fraction: float, role: Role, *, best: float | None) -> Evaluation:
        """Take a combination at a fraction of its largest batch to its end.

        Args:
            uses: The methods.
            fraction: Share of the largest feasible micro-batch.
            role: Why it is tried.
            best: Samples per second of the best candidate so far, which decides what is hopeless.
        """
        model, failure = self._size(uses, role)
        if model is None:
            assert failure is not None
            return Evaluation(candidate=failure, settles_combination=True)
        batch = self._batch(model, fraction)
        if batch is None:
            too_big = self._too_big(Policy(methods=uses, micro_batch=1), role, model)
            return Evaluation(candidate=too_big, settles_combination=True)
        policy = Policy(methods=uses, micro_batch=batch.micro_batch, accumulation_steps=batch.accumulation_steps)
        refusal = self._refusal(policy)
        if refusal is not None:
            return Evaluation(candidate=self._unmeasured(policy, role, Outcome.REFUSED, refusal, None))
        predicted_rate = policy.global_batch / model.seconds(policy.micro_batch, policy.accumulation_steps)
        if best is not None and role is Role.SEARCHED and predicted_rate < _HOPELESS * best:
            reason = f"short runs predict {format_rate(predicted_rate)} samples/s, and {self._pace} {format_rate(best)}"
            slow = self._unmeasured(policy, role, Outcome.SCREENED, reason, model.predict(policy.micro_batch))
            return Evaluation(candidate=slow, settles_combination=True)
        candidate = self.time(policy, role, best=best)
        if candidate.outcome is Outcome.OUT_OF_MEMORY and role is not Role.SEARCHED and policy.micro_batch > 1:
            return self._retried(candidate, fraction, best)
        return Evaluation(candidate=candidate, settles_combination=candidate.outcome in _ANOTHER_BATCH_WILL_NOT_HELP)

    def _retried(self, failed: Candidate, fraction: float, best: float | None) -> Evaluation:
        """A setting that everything is compared with gets a second try, at half the batch that did not fit at most."""
        model = self._trials.model_of(failed.policy.methods)
        assert model is not None, "a policy that was timed was sized"
        largest = min(model.largest_batch(self._goal.memory_limit_bytes), failed.policy.micro_batch // 2)
        batch = choose_batch(largest=largest, fraction=fraction, global_batch=self._goal.global_batch)
        if batch is None:
            return Evaluation(candidate=failed)
        policy = Policy(
            methods=failed.policy.methods, micro_batch=batch.micro_batch, accumulation_steps=batch.accumulation_steps
        )
        if self._refusal(policy) is not None:
            return Evaluation(candidate=failed)
        return Evaluation(candidate=self.time(policy, failed.role, best=best), before=(failed,))

    def time(self, policy: Policy, role: Role, *, best: float | None) -> Candidate:
        """Measure a policy."""
        self._progress.trial_started(self.number, policy, f"measuring{self._where}")
        outpaced_below = best if role is Role.SEARCHED else None
        result = self._trials.time(policy, outpaced_below=outpaced_below)
        notes = (*self._effects(policy.methods), *result.notes)
        return Candidate(
            policy=policy,
            role=role,
            outcome=result.outcome,
            reason=result.reason,
            measurement=result.measurement,
            fidelity=self._fidelity(policy),
            loss_drift=self._trials.drift(policy.methods),
            notes=notes,
            trial_key=result.key,
        )

    def _size(self, uses: tuple[MethodUse, ...], role: Role) -> tuple[MemoryModel | None, Candidate | None]:
        """The combination's memory model, or the candidate that says why there is none."""
        known = self._trials.model_of(uses)
        if known is not None:
            return known, None
        if uses and self._trials.sizing_of(()) is None:
            # A continued study has plain training in its records but not in its memory: without it no loss could be
            # compared, and a method that breaks the training would pass.
            self._trials.size((), self._goal.global_batch)
        policy = Policy(methods=uses, micro_batch=self._trials.first_batch)
        self._progress.trial_started(self.number, policy, f"short runs for its memory and time{self._where}")
        model, result = self._trials.size(uses, self._goal.global_batch)
        if model is not None:
            return model, None
        return None, self._failed_sizing(policy, role, result)

    def _failed_sizing(self, policy: Policy, role: Role, result: TrialResult) -> Candidate:
        outcome = result.outcome
        reason = result.reason
        if outcome is Outcome.OK:
            # The trial went well and its finding is that not one sample fits.
            outcome = Outcome.OUT_OF_MEMORY
        if outcome is Outcome.OUT_OF_MEMORY and not reason:
            reason = does_not_fit(need_bytes=None, limit_bytes=self._goal.memory_limit_bytes)
        return self._unmeasured(policy, role, outcome, reason, None)

    def _batch(self, model: MemoryModel, fraction: float) -> Batch | None:
        """The batch of a trial: bound by memory and, on a slow device, by what a trial has time for."""
        largest = model.largest_batch(self._goal.memory_limit_bytes)
        if largest >= 1 and self._goal.global_batch is None:
            in_time = round_batch(model.largest_within_seconds(self._budget.longest_step_seconds))
            if in_time < largest:
                note = (
                    f"batches were kept below {self._budget.longest_step_seconds:.3g} s per step, so that a trial ends "
                    "in time; memory would allow larger ones (raise --time-limit to try them)"
                )
                if note not in self.notes:
                    self.notes.append(note)
                largest = in_time
        return choose_batch(largest=largest, fraction=fraction, global_batch=self._goal.global_batch)

    def _refusal(self, policy: Policy) -> str | None:
        """What forbids this policy although its methods apply: accumulation, or the fidelity of accumulation."""
        verdict = judge(
            policy.methods,
            facts=self._facts,
            hardware=self._hardware,
            accumulation_steps=policy.accumulation_steps,
        )
        if not verdict.applicable:
            return verdict.reason
        fidelity = self._fidelity(policy)
        if not self._goal.fidelity.allows(fidelity):
            return (
                f"with {policy.accumulation_steps} micro-batches per step its fidelity is {fidelity.value}, "
                f"and at most {self._goal.fidelity.value} is allowed"
            )
        return None

    def _too_big(self, policy: Policy, role: Role, model: MemoryModel) -> Candidate:
        predicted = model.predict(policy.micro_batch)
        reason = does_not_fit(
            need_bytes=predicted, limit_bytes=self._goal.memory_limit_bytes, micro_batch=policy.micro_batch
        )
        return self._unmeasured(policy, role, Outcome.SCREENED, reason, predicted)

    def _unmeasured(
        self, policy: Policy, role: Role, outcome: Outcome, reason: str, predicted_peak_bytes: int | None
    ) -> Candidate:
        return Candidate(
            policy=policy,
            role=role,
            outcome=outcome,
            reason=reason,
            predicted_peak_bytes=predicted_peak_bytes,
            fidelity=self._fidelity(policy),
            loss_drift=self._trials.drift(policy.methods),
        )

    def _fidelity(self, policy: Policy) -> Fidelity:
        return worst_fidelity(policy.methods, accumulation_steps=policy.accumulation_steps, facts=self._facts)

    def _effects(self, uses: tuple[MethodUse, ...]) -> tuple[str, ...]:
        """Methods that were applied and changed nothing say so."""
        own, plain = self._trials.sizing_of(uses), self._trials.sizing_of(())
        if not uses or own is None or plain is None:
            return ()
        return changed_nothing([get_method(use.name) for use in uses], own, plain)
