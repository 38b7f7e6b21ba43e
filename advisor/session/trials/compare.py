"""Compare combinations by short steps that alternate with plain training's, and time the leaders at length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from advisor.decide.candidate import Candidate, Comparison, Role
from advisor.decide.eligible import is_faithful, is_measured
from advisor.measure.measurement import Measurement, Sizing
from advisor.methods.compose import starts_slowly
from advisor.policy.policy import Policy
from advisor.report.wording import comparison_words
from advisor.search.sizing.batching import Batch
from advisor.search.sizing.memory_model import MemoryModel, round_batch
from advisor.search.space.space import Combination
from advisor.session.trials.candidates import Evaluation
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.expected import expected_at
from advisor.session.trials.stalls import around_stalls, speedup_between
from advisor.session.trials.turns import Turns
from advisor.trial.outcome import Outcome
from advisor.trial.result import TimeResult
from advisor.trial.spec import HOPELESS

__all__ = ["ComparingEvaluator"]

_EFFICIENT = 0.8
"""A batch is worth looking at from this share of the throughput of very large batches."""

_STEPS = 4
"""Alternating steps that there is time for: two rounds of a combination and plain training."""

_STEPS_OF_PACESETTER = 12
"""The same beside a faster combination, so that slower ones still have time for their rounds."""

_CLEARLY = 1.1
"""Speedup over the baseline from which a combination sets the pace for short steps."""

_LADDER = 2
"""Ratio of each batch of a ladder to the one before."""

_MOST_RUNGS = 6


class ComparingEvaluator(Evaluator):
    """An evaluator for one device that compares before it times.

    Throughput grows with the batch up to a plateau. Plain training's profiling runs show where that begins: there
    combinations are compared, and from there a leader's ladder of batches goes up for as long as it gains.
    """

    @property
    def _turns(self) -> Turns:
        return self._trials.turns

    def baseline_is(self, baseline: Candidate | None, earlier: Sequence[Candidate] = ()) -> list[Candidate]:
        """Set the baseline that timed steps alternate with from now on, and choose the batch to compare at.

        Args:
            baseline: The baseline; ``None`` or unmeasured if it has no measurement.
            earlier: Candidates of an earlier run of the study, which this one continues.

        Returns:
            Plain training at that batch, alternating with the baseline, if that is another training: short steps
            measure others relative to it.
        """
        plain = Combination()
        if baseline is None or baseline.measurement is None:
            return []
        if self._size(plain, Role.BASELINE)[0] is None:
            # Only methods make it fit: timed steps alternate with the baseline, short ones with nothing.
            self._turns.baseline = baseline if baseline.policy.methods else None
            return []
        steady = self._timed_around_stalls(baseline)
        self._turns.baseline = baseline
        if steady is not None:
            self._go_on_from(earlier)
            return [steady]
        model, sizing = self._trials.model_of(plain), self._trials.sizing_of(plain)
        assert model is not None, "it was sized just now"
        assert sizing is not None, "it was sized just now"
        own = self._make.policy(plain, Batch(baseline.policy.micro_batch))
        self._turns.compare_at = self._batch_to_compare_at(own, model, sizing)
        found = []
        if self._turns.compare_at > own.micro_batch or baseline.policy.methods:
            policy = self._at_most(self._make.policy(plain, Batch(self._turns.compare_at)), self._turns.compare_at)
            found.append(self._briefly_timed(policy, Role.SEARCHED, "in turn with the baseline"))
            if not is_measured(found[-1]):
                # Whatever took turns with it at this batch would fail as well.
                self._turns.compare_at = min(self._turns.compare_at, own.micro_batch)
        self._go_on_from(earlier)
        return found

    def _timed_around_stalls(self, baseline: Candidate) -> Candidate | None:
        """Time plain training without what other processes do to it, so that everything takes turns with that.

        Returns:
            It, if it is clearly faster than the baseline; otherwise ``None``.
        """
        assert self._turns.baseline is None, "it takes turns with nothing"
        assert baseline.measurement is not None, "it was measured"
        combination = around_stalls(Combination(), self._turns.around)
        if combination == Combination():
            return None
        model, sizing = self._trials.model_of(combination), self._trials.sizing_of(combination)
        if model is None or sizing is None:
            return None
        own = self._make.policy(combination, Batch(baseline.policy.micro_batch))
        steady = self._briefly_timed(own, Role.SEARCHED, "measuring")
        if steady.measurement is None:
            return None
        speedup = speedup_between(steady.measurement, baseline.measurement)
        if speedup.low <= _CLEARLY:
            return None
        steady = msgspec.structs.replace(steady, speedup=speedup)
        self._turns.steady = self._turns.leader = steady
        self._turns.pacesetter = combination
        plain = self._make.policy(Combination(), Batch(baseline.policy.micro_batch))
        self._turns.compare_at = self._batch_to_compare_at(plain, model, sizing)
        return steady

    def _go_on_from(self, earlier: Sequence[Candidate]) -> None:
        """Compare as the earlier run did when it ended, so that its sizing trials are read back, not run again."""
        compared = [
            one.comparison
            for one in earlier
            if one.outcome is Outcome.COMPARED and one.comparison is not None and one.comparison.speedup is not None
        ]
        beside = compared[-1].beside if compared else Combination().label
        may_lead = [one for one in earlier if is_measured(one) and is_faithful(one, self._goal)]
        timed = [one for one in may_lead if Combination.of(one.policy).label == beside]
        pacesetter = Combination.of(timed[0].policy) if timed else Combination()
        alone = any(one.role is Role.HAND_TUNED for one in timed)
        if pacesetter == Combination() or self._size(pacesetter, Role.SEARCHED, alone=alone)[0] is None:
            return
        self._turns.pacesetter = pacesetter
        first = {one.policy.key: one for one in reversed(timed) if one.speedup is not None}  # no repetition of any
        self._turns.leader = max(first.values(), key=_rate, default=None)
        # What was hopeless may have been compared at a smaller batch.
        likely = [one for one in compared if one.beside == beside and one.speedup and one.speedup.high >= HOPELESS]
        largest = max(one.micro_batch for one in compared if one.beside == beside)
        self._turns.compare_at = min((one.micro_batch for one in likely), default=largest)

    def _timed_baseline(self, policy: Policy) -> Candidate:
        """Roughly measure the baseline's throughput: what counts is the speedup of others that alternate with it."""
        slowed_down = {"thread_rates": self._trials.thread_rates, "min_timed_steps": 2} if self._turns.around else {}
        return self._briefly_timed(policy, Role.BASELINE, "measuring", **slowed_down)

    def _briefly_timed(self, policy: Policy, role: Role, what: str, **asked: Any) -> Candidate:
        self._progress.trial_started(self.number, policy, what)
        seconds = self._budget.limits.turn_seconds
        result = self._trials.time(policy, outpaced_below=None, measure_seconds=seconds, **asked)
        return self._make.timed(policy, role, result, result.measurement)

    def compare(self, combination: Combination, role: Role) -> Evaluation:
        """Compare a combination with the pacesetter by alternating short steps, instead of timing it at length.

        Without anything to compare with, it is timed.
        """
        found = self._policy_to_try(combination, 1.0, role)
        if isinstance(found, Evaluation):
            return found
        largest, _ = found
        policy = self._aimed(largest)
        comparison = self._expected(policy)
        if comparison is None:  # plain training does not run even at the smallest batch: measurements are absolute
            return self.evaluate(combination, 1.0, role, best=None)
        candidate = self._make.unmeasured(policy, role, Outcome.COMPARED, comparison_words(comparison), None)
        candidate = msgspec.structs.replace(candidate, comparison=comparison, notes=self._make.effects(combination))
        return Evaluation(candidate=candidate, expected_rate=comparison.expected_samples_per_second)

    def time_at_once(self, combination: Combination, role: Role) -> Evaluation:
        """Time a combination batch by batch without comparing it first."""
        policy = self._make.policy(combination, Batch(1))
        leader = self._make.unmeasured(policy, role, Outcome.COMPARED, "", None)
        return self.time_leader(leader, best=None, alone=True)

    def time_leader(self, leader: Candidate, *, best: float | None, alone: bool = False) -> Evaluation:
        """Time a compared candidate that may lead, batch by batch."""
        combination = Combination.of(leader.policy)
        found = self._policy_to_try(combination, 1.0, leader.role, alone=alone)
        if isinstance(found, Evaluation):
            return found
        largest, _ = found
        self._turns.times(combination)
        first = self._aimed(largest)
        ladder = self._ladder(first, largest)
        self._progress.trial_started(self.number, first, f"timing it batch by batch{self._where}")
        result = self._trials.time(
            first,
            outpaced_below=None,
            ladder=ladder,
            expected_gains=self._expected_gains(first, ladder),
            ladder_seconds=self._budget.limits.ladder_seconds,
        )
        candidates = self._timed_ladder(leader, first, ladder, result)
        if result.outcome is Outcome.OUT_OF_MEMORY or self._has_no_batch(candidates[0]):
            return self._retried(candidates[0], best)
        top = max(candidates, key=_rate)
        if result.outcome is Outcome.OK:
            # Without a ladder there is no news of where it peaks, and memory for fewer samples is no news for others.
            if ladder or (not self._turns.peaked and top.policy.micro_batch >= (self._turns.best_batch or 1)):
                self._turns.best_batch = top.policy.micro_batch
                self._turns.peaked = top is not candidates[-1]
            place = candidates.index(top)
            candidates[place] = top = msgspec.structs.replace(top, comparison=self._expected(top.policy))
            self._sets_the_pace(top, max(one.policy.micro_batch for one in candidates))
        others = [msgspec.structs.replace(one, role=Role.SEARCHED) for one in candidates if one is not top]
        return Evaluation(candidate=top, before=tuple(others))

    def withdraw(self, leader: Candidate) -> None:
        """Compare again as before a leader was timed, which trains wrongly."""
        self._turns.withdraw(Combination.of(leader.policy))

    def _expected_gains(self, first: Policy, ladder: Sequence[Policy]) -> tuple[float, ...]:
        """Throughput at each batch of a ladder relative to the one before, as the profiling runs predict it."""
        model = self._trials.model_of(Combination.of(first))
        assert model is not None, "it was sized"
        seconds = [model.seconds(one.micro_batch, one.accumulation_steps) for one in (first, *ladder)]
        if min(seconds) <= 0:
            return ()
        rates = [one.global_batch / taken for one, taken in zip((first, *ladder), seconds, strict=True)]
        return tuple(later / earlier for earlier, later in itertools.pairwise(rates))

    def _timed_ladder(
        self, leader: Candidate, first: Policy, ladder: Sequence[Policy], result: TimeResult
    ) -> list[Candidate]:
        """The candidates that were timed, by growing batch."""
        policies = {one.micro_batch: one for one in ladder}

        def timed(policy: Policy, measurement: Measurement | None) -> Candidate:
            one = self._make.timed(policy, leader.role, result, measurement)
            return msgspec.structs.replace(one, comparison=leader.comparison)

        found = {first.micro_batch: timed(first, result.measurement)}
        for rung in result.ladder:
            batch = rung.measurement.micro_batch
            own = msgspec.structs.replace(timed(policies[batch], rung.measurement), speedup=rung.speedup)
            before = found[max(found) if rung.over is None or rung.over > batch else rung.over]
            if rung.gain is not None and rung.over is not None and rung.over > batch:
                own = msgspec.structs.replace(own, gain_of_larger=rung.gain.inverse)
            elif rung.gain is not None and _gain(before) < rung.gain.value:  # Two batches may have been tried after it.
                found[before.policy.micro_batch] = msgspec.structs.replace(before, gain_of_larger=rung.gain)
            found[batch] = own
        return list(found.values())

    def _expected(self, policy: Policy) -> Comparison | None:
        combination = Combination.of(policy)
        beside = self._turns.compared_with(combination)
        own, reference = self._trials.sizing_of(combination), self._trials.sizing_of(beside)
        model = self._trials.model_of(beside)
        if own is None or reference is None or model is None:
            return None
        return expected_at(policy, own, reference, model, beside=beside.label)

    def _sets_the_pace(self, leader: Candidate, largest: int) -> None:
        """Make a clearly faster combination the pacesetter: its steps cost less time than plain training's.

        It is compared with at no batch above the largest that it was timed at: there it may fail.
        """
        combination = Combination.of(leader.policy)
        model, sizing = self._trials.model_of(combination), self._trials.sizing_of(combination)
        if leader.speedup is None or leader.speedup.low <= _CLEARLY or model is None or sizing is None:
            return
        # To rebuild one that compiles, after a trial that needed the memory, would cost more time than it saves.
        compiles = starts_slowly(combination.settings)
        if self._turns.pacesetter == Combination() and not compiles:
            self._turns.pacesetter, self._turns.leader = combination, leader
            self._turns.compare_at = min(self._batch_to_compare_at(leader.policy, model, sizing), largest)

    def _batch_to_compare_at(self, own: Policy, plain: MemoryModel, sizing: Sizing) -> int:
        """The batch where per-sample work dominates a step, or the policy's own; small enough for several steps."""
        steps = _STEPS_OF_PACESETTER if own.methods else _STEPS
        in_time = plain.largest_within_seconds(self._budget.limits.turn_seconds / steps)
        wanted = min(max(own.micro_batch, _efficient_batch(plain, sizing)), in_time)
        if not own.methods and plain.seconds(own.micro_batch) <= self._budget.limits.turn_seconds:
            wanted = max(wanted, own.micro_batch)  # then others are compared with the baseline itself
        wanted = min(wanted, plain.largest_batch(self._goal.limit_on(1)))
        if self._goal.global_batch is not None:
            wanted = min(wanted, self._goal.global_batch)
        least = min(self._trials.first_batch, own.micro_batch)
        return max(least, wanted if wanted == own.micro_batch else round_batch(wanted, self._layout))

    def _aimed(self, largest: Policy) -> Policy:
        """The policy at the best batch of the last ladder, or else at that of the comparison.

        Without a baseline to compare with, at the batch that its own profiling runs suggest.
        """
        return self._at_most(largest, self._turns.best_batch or self._turns.compare_at or self._usual_batch_of(largest))

    def _usual_batch_of(self, largest: Policy) -> int:
        combination, own = Combination.of(largest), self.own_batch()
        model, sizing = self._trials.model_of(combination), self._trials.sizing_of(combination)
        assert model is not None, "it was sized"
        assert sizing is not None, "it was sized"
        first = self._trials.first_batch if own is None else own.micro_batch
        return self._batch_to_compare_at(self._at_most(largest, first), model, sizing)

    def _ladder(self, first: Policy, largest: Policy) -> tuple[Policy, ...]:
        ladder: list[Policy] = []
        compiles = starts_slowly(first.methods)
        if self._turns.best_batch is not None and (self._turns.peaked or compiles):
            return ()  # the best batch is known, or each batch would have to be compiled for
        before = first
        while len(ladder) < _MOST_RUNGS and before.micro_batch < largest.micro_batch:
            following = self._at_most(largest, _LADDER * before.micro_batch)
            if following.micro_batch <= before.micro_batch:
                following = largest
            if self._make.refusal(following) is not None:
                break
            ladder.append(following)
            before = following
        return tuple(ladder)

    def _at_most(self, largest: Policy, wanted: int) -> Policy:
        batch = self._chosen(min(wanted, largest.micro_batch), Combination.of(largest))
        if batch is None:  # no divisor of the global batch is so small and one that a batch may have
            return largest
        return self._make.policy(Combination.of(largest), batch)


def _efficient_batch(model: MemoryModel, sizing: Sizing) -> int:
    rates = {point.micro_batch: point.micro_batch / point.step_seconds for point in sizing.points}
    seen = min(batch for batch, rate in rates.items() if rate >= _EFFICIENT * max(rates.values()))
    fixed, growing = max(0.0, model.time.intercept), model.time.slope
    if growing <= 0:
        return seen
    return max(seen, math.ceil(_EFFICIENT / (1 - _EFFICIENT) * fixed / growing))


def _gain(candidate: Candidate) -> float:
    return 0.0 if candidate.gain_of_larger is None else candidate.gain_of_larger.value


def _rate(candidate: Candidate) -> float:
    return 0.0 if candidate.measurement is None else candidate.measurement.samples_per_second
