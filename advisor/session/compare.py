"""Tell combinations apart by short steps in turn with plain training, and time those at length that lead."""

from __future__ import annotations

import math

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.measure.measurement import Measurement
from advisor.policy.policy import Policy
from advisor.report.wording import comparison_words
from advisor.search.batching import choose_batch
from advisor.search.memory_model import MemoryModel, round_batch
from advisor.search.resolved import Combination
from advisor.session.evaluate import Evaluation, Evaluator
from advisor.session.expected import expected_at
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TrialResult

__all__ = ["ComparingEvaluator"]

_EFFICIENT = 0.8
"""Share of the throughput of very large batches from which on a batch is worth looking at."""

_ROUNDS = 2.5
"""Steps of plain training and of a combination each that its turns have time for, about."""

_LADDER = 2
"""Each batch of a ladder is so many times the one before."""

_MOST_RUNGS = 6


class ComparingEvaluator(Evaluator):
    """An evaluator for one device that compares before it times.

    Throughput grows with the batch up to a plateau. Where it begins is told from plain training's short runs; there
    combinations are compared, and from there the ladder of a leader's batches goes up for as long as it gains.
    """

    _best_batch: int | None = None
    """Samples per forward pass at which the last ladder was best."""
    _peaked = False
    """Whether that ladder saw a larger batch that was no better."""

    def baseline(self) -> Candidate | None:
        """Plain training at the user's own batch; then all others know at which batch they are compared with it."""
        baseline = super().baseline()
        self.baseline_is(baseline)
        return baseline

    def baseline_is(self, baseline: Candidate | None) -> None:
        """From now on, what is timed takes turns with the baseline."""
        super().baseline_is(baseline)
        plain = Combination()
        if self._trials.model_of(plain) is None:
            self._size(plain, Role.BASELINE)
        model = self._trials.model_of(plain)
        if model is not None:
            self._trials.compare_at = self._batch_to_compare_at(model)

    def compare(self, combination: Combination, role: Role) -> Evaluation:
        """Hold a combination against plain training by short steps in turn, instead of timing it at length.

        Args:
            combination: The methods.
            role: Why it is tried.
        """
        found = self._policy_to_try(combination, 1.0, role)
        if isinstance(found, Evaluation):
            return found
        largest, model = found
        policy = self._aimed(largest, model)
        own, plain = self._trials.sizing_of(combination), self._trials.sizing_of(Combination())
        plain_model = self._trials.model_of(Combination())
        assert own is not None, "it was sized just now"
        if plain is None or plain_model is None:
            return Evaluation(
                candidate=self._unmeasured(policy, role, Outcome.SCREENED, "plain training has no short runs", None)
            )
        comparison = expected_at(policy, own, plain, plain_model)
        candidate = self._unmeasured(policy, role, Outcome.COMPARED, comparison_words(comparison), None)
        candidate = msgspec.structs.replace(candidate, comparison=comparison, notes=self._effects(combination))
        return Evaluation(candidate=candidate, expected_rate=comparison.expected_samples_per_second)

    def time_leader(self, leader: Candidate, *, best: float | None) -> Evaluation:
        """Time what was compared and may lead, batch by batch.

        Args:
            leader: The compared candidate.
            best: Samples per second of the best candidate so far.
        """
        combination = Combination.of(leader.policy)
        found = self._policy_to_try(combination, 1.0, leader.role)
        if isinstance(found, Evaluation):
            return found
        largest, model = found
        first = self._aimed(largest, model)
        ladder = self._ladder(first, largest)
        self._progress.trial_started(self.number, first, f"timing it in turn with the baseline{self._where}")
        result = self._trials.time(first, outpaced_below=None, ladder=ladder)
        candidates = [self._candidate_at(first, leader, result, result.measurement)]
        for policy, rung in zip(ladder, result.ladder, strict=False):
            one = self._candidate_at(policy, leader, result, rung.measurement)
            candidates.append(msgspec.structs.replace(one, speedup=rung.speedup))
        if result.outcome is Outcome.OUT_OF_MEMORY:
            return self._retried(candidates[0], best)
        top = max(candidates, key=_rate)
        if result.outcome is Outcome.OK:
            self._best_batch = top.policy.micro_batch
            self._peaked = top is not candidates[-1]
        others = [msgspec.structs.replace(one, role=Role.SEARCHED) for one in candidates if one is not top]
        return Evaluation(candidate=top, before=tuple(others))

    def _candidate_at(
        self, policy: Policy, leader: Candidate, result: TrialResult, measurement: Measurement | None
    ) -> Candidate:
        candidate = self._candidate(policy, leader.role, result, measurement)
        return msgspec.structs.replace(candidate, comparison=leader.comparison)

    def _batch_to_compare_at(self, plain: MemoryModel) -> int:
        """Where a step is mostly work on samples, and short enough for some of them; the user's own if that is."""
        wanted = _efficient_batch(plain)
        in_time = plain.largest_within_seconds(self._budget.turn_seconds / (2 * _ROUNDS))
        largest = plain.largest_batch(self._trials.limit_on(1))
        if self._goal.global_batch is not None:
            largest = min(largest, self._goal.global_batch)
        return max(1, round_batch(min(wanted, max(in_time, self._trials.first_batch), largest)))

    def _aimed(self, largest: Policy, model: MemoryModel) -> Policy:
        """The policy at the batch where the last ladder was best, or else where a first one is to begin."""
        own = self._facts.default_batch or 1
        wanted = self._best_batch or max(own, _efficient_batch(model))
        return self._at_most(largest, wanted)

    def _ladder(self, first: Policy, largest: Policy) -> tuple[Policy, ...]:
        """Growing batches up to the largest."""
        ladder: list[Policy] = []
        if self._best_batch is not None and self._peaked:
            return ()
        before = first
        while len(ladder) < _MOST_RUNGS and before.micro_batch < largest.micro_batch:
            following = self._at_most(largest, _LADDER * before.micro_batch)
            if following.micro_batch <= before.micro_batch:
                following = largest
            if self._refusal(following) is not None:
                break
            ladder.append(following)
            before = following
        return tuple(ladder)

    def _at_most(self, largest: Policy, wanted: int) -> Policy:
        batch = choose_batch(
            largest=min(wanted, largest.micro_batch),
            fraction=1.0,
            global_batch=self._goal.global_batch,
            gpu_count=largest.gpu_count,
        )
        assert batch is not None, "at least one sample fits"
        return self._policy(Combination.of(largest), batch)


def _efficient_batch(model: MemoryModel) -> int:
    """Where the part of a step that does not grow with the batch no longer matters."""
    fixed, growing = max(0.0, model.time.intercept), model.time.slope
    if growing <= 0:
        return model.fits_at
    return max(1, math.ceil(_EFFICIENT / (1 - _EFFICIENT) * fixed / growing))


def _rate(candidate: Candidate) -> float:
    return 0.0 if candidate.measurement is None else candidate.measurement.samples_per_second
