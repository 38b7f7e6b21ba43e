"""From a combination of methods to a candidate: size it, choose its batch, judge it, time it."""

from __future__ import annotations

import math

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.goal import GoalKind
from advisor.hardware.mesh import DATA_ONLY
from advisor.measure.timing import NEAR
from advisor.methods.compose import starts_slowly
from advisor.policy.policy import Policy
from advisor.search.sizing.batching import (
    AFTER_FLUSHES,
    AFTER_OUT_OF_MEMORY,
    Batch,
    choose_batch,
    does_not_fit,
    pipeline_passes,
)
from advisor.search.sizing.memory_model import MemoryModel, round_batch
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.trials.candidates import CandidateMaker, Evaluation
from advisor.session.trials.micro_batches import largest_of_global_batch, usual_batch
from advisor.session.trials.trials import Trials
from advisor.text.units import format_count, format_rate, format_seconds
from advisor.trial.outcome import Outcome
from advisor.trial.result import TimeResult

__all__ = ["Evaluator"]

_ANOTHER_BATCH_WILL_NOT_HELP = (Outcome.FAILED, Outcome.DIVERGED, Outcome.CRASHED)

_HALF = 0.5
"""Share of a batch that is timed as well: where memory bandwidth or caches decide, less is sometimes faster."""

_HOPELESS = 0.5
"""A combination predicted to reach less than this share of the best throughput is not timed. Predictions from two
measured batches are about 10 % off, so nothing near the best is lost."""


class Evaluator:
    """Turns combinations into candidates. Every way to end has an outcome and a reason.

    Args:
        context: The study.
        trials: Runs the trials.
        pace: Words for ``best`` in the reason of a combination that is too slow.
        where: Suffix of the display's progress lines (``" at layers=24"``).
        times_half: Whether half of the batch is timed in the same trial because nobody proposes it otherwise.

    Attributes:
        notes: What the user should know about how batches were chosen.
    """

    def __init__(
        self,
        context: StudyContext,
        trials: Trials,
        *,
        pace: str = "the best so far reached",
        where: str = "",
        times_half: bool = False,
    ) -> None:
        self._trials = trials
        self._ledger = context.ledger
        self._budget = context.budget
        self._goal = context.goal
        self._facts = context.facts
        self._plainest = context.plainest(context.goal.gpu_counts[0])
        self._layout = context.facts.batch_layout
        self._own = context.request.baseline
        self._make = CandidateMaker(trials, context.goal, context.facts, context.hardware, context.request.model_size)
        self._progress = context.progress
        self._pace = pace
        self._where = where
        self._times_half = times_half
        self.notes: list[str] = []

    @property
    def number(self) -> int:
        """Number of the trial under way, for the display."""
        return self._ledger.next_number

    def own_batch(self) -> Batch | None:
        """The user's own batch: ``BATCH_SIZE``, or the global batch in as few passes as possible.

        If neither is stated, a default.
        """
        own, devices = self._facts.default_batch, self._goal.gpu_counts[0]
        plainest = self._plainest or Combination(gpu_count=devices)
        if own is None and (self._goal.kind is not GoalKind.CHEAPEST or self._own is not None):
            own = usual_batch(self._facts)
        most = self._trials.most_samples
        if own is not None and most is not None and own > most:
            if self._facts.default_batch is not None:
                self._note(f"BATCH_SIZE is {own}, but {self._trials.runs.why_no_more}")
            own = self._layout.fitted(most) or most
        if own is None or self._goal.global_batch is None:
            return None if own is None else Batch(own, pipeline_passes(plainest.mesh))
        return self._chosen(own, plainest)

    def is_plainest(self, combination: Combination) -> bool:
        """Whether it is plain training on the fewest devices."""
        return combination == self._plainest

    def baseline(self) -> Candidate | None:
        """The user's own settings; without any, plain training at the user's own batch, on the fewest devices.

        ``None`` when the workload states no batch.
        """
        own = self._own
        combination = self._plainest if own is None else Combination.of(own.policy)
        batch = self.own_batch()
        if own is not None and own.states_batch:
            batch = Batch(own.policy.micro_batch, own.policy.accumulation_steps)
        elif own is not None and batch is not None and self._goal.global_batch is None:
            batch = Batch(batch.micro_batch, own.policy.accumulation_steps)
        if batch is None or combination is None:
            return None
        model, failure = self._size(combination, Role.BASELINE)
        if model is None:
            return failure
        fits = model.largest_batch(self._goal.limit_on(combination.gpu_count), margin=0.0, rounded=False)
        if not (own and own.states_batch) and self._facts.default_batch is None and self._goal.global_batch is None:
            within = self._batch(model, 1.0, combination) or Batch(self._layout.least_samples)
            batch = Batch(min(batch.micro_batch, within.micro_batch), batch.accumulation_steps)
        policy = self._make.policy(combination, batch)
        if fits < batch.micro_batch:
            return self._make.too_big(policy, Role.BASELINE, model)
        return self._timed_baseline(policy)

    def _timed_baseline(self, policy: Policy) -> Candidate:
        return self.time(policy, Role.BASELINE, best=None)

    def explain_baseline(self, baseline: Candidate) -> None:
        """Note where the baseline's batch comes from, unless the user stated it."""
        stated = self._facts.default_batch or self._goal.global_batch or (self._own and self._own.states_batch)
        if stated or baseline.measurement is None or self._goal.kind is GoalKind.CHEAPEST:
            return
        samples = format_count(baseline.policy.micro_batch, "sample")
        self.notes.append(
            f"the model file states no BATCH_SIZE: {samples} a step, a usual batch, was taken for the "
            "baseline. Add BATCH_SIZE = N, or give --batch N, to be compared with yours"
        )

    def evaluate(self, combination: Combination, fraction: float, role: Role, *, best: float | None) -> Evaluation:
        """Evaluate a combination at a fraction of its largest batch.

        Args:
            combination: The methods and the number of devices.
            fraction: Share of the largest feasible micro-batch.
            role: Why it is tried.
            best: Samples per second of the best candidate so far on as many devices; hopeless combinations stop.
        """
        found = self._policy_to_try(combination, fraction, role)
        if isinstance(found, Evaluation):
            return found
        policy, model = found
        predicted_rate = policy.global_batch / model.seconds(policy.micro_batch, policy.accumulation_steps)
        if best is not None and role is Role.SEARCHED and predicted_rate < _HOPELESS * best:
            reason = f"profiling predicts {format_rate(predicted_rate)} samples/s, and {self._pace} {format_rate(best)}"
            slow = self._make.unmeasured(policy, role, Outcome.SCREENED, reason, model.predict(policy.micro_batch))
            return Evaluation(candidate=slow, settles_combination=True, expected_rate=predicted_rate)
        evaluation = self._timed(policy, role, best=best)
        only_try = self._times_half or role is not Role.SEARCHED
        if self._has_no_batch(evaluation.candidate) or (
            evaluation.candidate.outcome is Outcome.OUT_OF_MEMORY and only_try
        ):
            return self._retried(evaluation.candidate, best)
        if self._was_held_up(evaluation.candidate, best):
            return self._with_room(evaluation, best)
        return evaluation

    def _policy_to_try(
        self, combination: Combination, fraction: float, role: Role, *, alone: bool = False
    ) -> tuple[Policy, MemoryModel] | Evaluation:
        """The policy at the batch to try, with its memory model; or why there is none."""
        model, failure = self._size(combination, role, alone=alone)
        if model is None:
            assert failure is not None
            return Evaluation(candidate=failure, settles_combination=True)
        batch = self._batch(model, fraction, combination)
        if batch is None:
            smallest = self._make.policy(combination, Batch(self._layout.least_samples))
            return Evaluation(candidate=self._make.too_big(smallest, role, model), settles_combination=True)
        policy = self._make.policy(combination, batch)
        refusal = self._make.refusal(policy)
        if refusal is not None:
            return Evaluation(candidate=self._make.unmeasured(policy, role, Outcome.REFUSED, refusal, None))
        return policy, model

    def _retried(self, failed: Candidate, best: float | None) -> Evaluation:
        """Try again at smaller batches than the one that did not fit.

        For settings that everything is compared with, and wherever no smaller batch would be proposed.
        """
        tried = [failed]
        for share in AFTER_OUT_OF_MEMORY:
            policy = self._smaller(tried[-1].policy, math.floor(share * failed.policy.micro_batch))
            if policy is None:
                continue
            evaluation = self._timed(policy, failed.role, best=best)
            if not (evaluation.candidate.outcome is Outcome.OUT_OF_MEMORY or self._has_no_batch(evaluation.candidate)):
                return msgspec.structs.replace(evaluation, before=tuple(tried))
            tried.append(evaluation.candidate)
        return Evaluation(candidate=tried[-1], before=tuple(tried[:-1]))

    def _has_no_batch(self, candidate: Candidate) -> bool:
        """Whether it did not run because the data has fewer samples than its batch."""
        most = self._trials.most_samples
        return candidate.outcome is Outcome.REFUSED and most is not None and candidate.policy.global_batch > most

    def _was_held_up(self, candidate: Candidate, best: float | None) -> bool:
        """Whether it leads or nearly does although its allocator had to flush its cache and retry."""
        if candidate.outcome is not Outcome.OK or candidate.measurement is None:
            return False
        rate, flushes = candidate.measurement.samples_per_second, candidate.measurement.memory.allocation_retries
        return bool(flushes) and (best is None or rate >= AFTER_FLUSHES * best)

    def _with_room(self, full: Evaluation, best: float | None) -> Evaluation:
        """The better of a batch that fills memory and a slightly smaller one that leaves the allocator room."""
        first = full.candidate
        policy = self._smaller(first.policy, math.floor(AFTER_FLUSHES * first.policy.micro_batch))
        if policy is None:
            return full
        second = self.time(policy, first.role, best=best)
        if second.outcome is Outcome.OK and second.samples_per_second > first.samples_per_second:
            return msgspec.structs.replace(full, candidate=second, before=(first,))
        return msgspec.structs.replace(full, before=(second,))

    def _smaller(self, policy: Policy, largest: int) -> Policy | None:
        """The same methods at a smaller batch, up to ``largest``; ``None`` if none is allowed."""
        combination = Combination.of(policy)
        model = self._trials.model_of(combination)
        assert model is not None, "a policy that was timed was sized"
        most = model.largest_batch(self._goal.limit_on(combination.gpu_count))
        batch = self._chosen(min(most, largest), combination)
        if batch is None or batch.micro_batch >= policy.micro_batch:
            return None
        smaller = self._make.policy(combination, batch)
        return smaller if self._make.refusal(smaller) is None else None

    def time(self, policy: Policy, role: Role, *, best: float | None) -> Candidate:
        """Measure a policy."""
        result = self._run(policy, role, best=best)
        return self._make.timed(policy, role, result, result.measurement)

    def _timed(self, policy: Policy, role: Role, *, best: float | None) -> Evaluation:
        """Measure a policy, and half of its batch in the same trial where nobody else would."""
        half = self._half(policy)
        result = self._run(policy, role, best=best, half=half)
        candidate = self._make.timed(policy, role, result, result.measurement)
        smaller = None
        if half is not None and result.smaller is not None:
            # Its batch makes the larger one a baseline or hand-tuned, so the half is neither.
            smaller = self._make.timed(half, Role.SEARCHED, result, result.smaller)
        return Evaluation(
            candidate=candidate,
            settles_combination=candidate.outcome in _ANOTHER_BATCH_WILL_NOT_HELP,
            smaller=smaller,
        )

    def _half(self, policy: Policy) -> Policy | None:
        """The policy at half of its batch, if that should be timed in the same trial.

        Not where a method compiles: a second batch triggers code for dynamic shapes, which will not be run later.
        """
        compiles = starts_slowly(policy.methods)
        batch = self._chosen(policy.micro_batch, Combination.of(policy), _HALF)
        if not self._times_half or compiles or batch is None:
            return None
        half = self._make.policy(Combination.of(policy), batch)
        return half if half.micro_batch < policy.micro_batch and self._make.refusal(half) is None else None

    def _run(self, policy: Policy, role: Role, *, best: float | None, half: Policy | None = None) -> TimeResult:
        self._progress.trial_started(self.number, policy, f"measuring{self._where}")
        return self._trials.time(
            policy,
            # Time policies near the best to their end: a repetition decides which of them is better.
            outpaced_below=(1 - NEAR) * best if role is Role.SEARCHED and best is not None else None,
            smaller=half,
        )

    def _size(
        self, combination: Combination, role: Role, *, alone: bool = False
    ) -> tuple[MemoryModel | None, Candidate | None]:
        """The combination's memory model, or the candidate that explains why there is none."""
        known = self._trials.model_of(combination)
        if known is not None:
            return known, None
        if (too_full := self._predicted_not_to_fit(combination, role)) is not None:
            return None, too_full
        largest = largest_of_global_batch(combination, self._goal)
        plain = self._trials.reference(combination.data_degree)
        if plain is not None and combination != plain and self._trials.sizing_of(plain) is None:
            # A continued study has plain training on disk but not in memory. Without it no loss could be compared, and
            # a method that breaks the training would pass.
            self._trials.size(plain, largest)
        policy = self._make.policy(combination, Batch(self._trials.first_batch))
        self._progress.trial_started(self.number, policy, f"profiling runs for its memory and time{self._where}")
        model, result = self._trials.size(combination, largest, alone=alone)
        if model is not None:
            return model, None
        return None, self._make.failed_sizing(policy, role, result)

    def _predicted_not_to_fit(self, combination: Combination, role: Role) -> Candidate | None:
        """Why a combination needs no profiling runs: not even one sample fits on its fullest device."""
        if combination.mesh == DATA_ONLY:
            return None
        policy = self._make.policy(combination, Batch(self._layout.least_samples, pipeline_passes(combination.mesh)))
        self._progress.trial_started(self.number, policy, f"predicting the memory of its fullest device{self._where}")
        need, limit = self._trials.fullest_bytes(combination), self._goal.limit_on(combination.gpu_count)
        if need is None or need <= limit:
            return None
        why = does_not_fit(need_bytes=need, limit_bytes=limit, micro_batch=policy.micro_batch)
        return self._make.unmeasured(policy, role, Outcome.SCREENED, f"{why} (a trace of its fullest device)", need)

    def _batch(self, model: MemoryModel, fraction: float, combination: Combination) -> Batch | None:
        """The batch of a trial: bounded by memory and, on a slow device, by the time of a trial."""
        largest = model.largest_batch(self._goal.limit_on(combination.gpu_count))
        if model.most_samples is not None and largest >= round_batch(model.most_samples):
            self._note(f"{self._trials.runs.why_no_more}: larger batches were not measured")
        if largest >= 1 and self._goal.global_batch is None:
            longest = self._budget.limits.longest_step_seconds / pipeline_passes(combination.mesh)
            in_time = max(round_batch(model.largest_within_seconds(longest)), self._layout.least_samples)
            if in_time < largest:
                self._note(
                    f"batches were kept below {format_seconds(self._budget.limits.longest_step_seconds)} per step, so "
                    "that a trial ends in time; memory would allow larger ones (raise --time-limit to try them)"
                )
                largest = in_time
        return self._chosen(largest, combination, fraction)

    def _chosen(self, largest: int, combination: Combination, fraction: float = 1.0) -> Batch | None:
        return choose_batch(
            largest=largest,
            fraction=fraction,
            global_batch=self._goal.global_batch,
            gpu_count=combination.gpu_count,
            mesh=combination.mesh,
            layout=self._layout,
        )

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
