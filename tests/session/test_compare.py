"""Combinations are compared where a step is mostly work on samples; what leads is timed batch by batch."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Comparison, Role
from advisor.goal import Fidelity, Goal
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Sizing
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.budget import TimeBudget
from advisor.session.trials.compare import ComparingEvaluator
from advisor.session.trials.turns import Turns
from advisor.trial.outcome import Outcome
from advisor.trial.result import Rung, SizeResult, TimeResult
from tests.decide.examples import baseline, goal, measured, measurement
from tests.decide.test_guard import found as guard_found
from tests.search.test_memory_model import point, sizing
from tests.session.contexts import study

MIB = 2**20
PLAIN = Combination()
CHECKPOINT = Combination((use("checkpoint", every=1),))
BF16 = Combination((use("precision", dtype="bf16"),))
TWICE = Speedup(value=2.0, low=1.9, high=2.1, rounds=4)


class FakeTrials:
    """Steps take ``fixed + growing * batch`` seconds and 100 MiB + 10 MiB per sample; timed ones reach ``rates``.

    Args:
        fixed: Seconds of a step of any batch.
        growing: Seconds of each sample.
        rates: Batch -> samples per second of timed trials; 100 for any other.
        fails_at: Batches that do not fit when they are timed.
        fails: How every profiling run ends.
        plain_fits: Whether plain training runs at all.
    """

    def __init__(
        self,
        *,
        fixed: float = 0.0,
        growing: float = 0.01,
        rates: dict[int, float] | None = None,
        fails_at: tuple[int, ...] = (),
        fails: Outcome | None = None,
        plain_fits: bool = True,
    ) -> None:
        self.first_batch = 2
        self.most_samples: int | None = None
        self.turns = Turns(wanted=False, usable_bytes=2**40, second_context_bytes=0)
        self.alone: list[str] = []
        self.rungs: dict[int, Rung] = {}
        self.rates = rates or {}
        self.fails_at = fails_at
        self.fails = fails
        self.timed: list[tuple[Policy, tuple[int, ...]]] = []
        self.seconds: list[float | None] = []
        points = [point(batch, passes=100 + 10 * batch, seconds=fixed + growing * batch) for batch in (2, 4)]
        self._plain = sizing(*points)
        points[-1] = msgspec.structs.replace(points[-1], speedup=TWICE)
        self._compared = sizing(*points)
        self.plain_fits = plain_fits
        self._sized: set[str] = set()

    def reference(self, gpu_count: int) -> Combination:
        return PLAIN

    def size(
        self, combination: Combination, largest: int | None, *, alone: bool = False
    ) -> tuple[MemoryModel | None, SizeResult]:
        if self.fails is not None and combination != PLAIN:
            return None, SizeResult(key="size", outcome=self.fails, reason="it was told to")
        if combination == PLAIN and not self.plain_fits:
            return None, SizeResult(key="size", outcome=Outcome.OUT_OF_MEMORY, reason="it did not fit")
        self._sized.add(combination.label)
        self.alone += [combination.label] * alone
        return self.model_of(combination), SizeResult(key="size", outcome=Outcome.OK)

    def model_of(self, combination: Combination) -> MemoryModel | None:
        found = self.sizing_of(combination)
        return None if found is None else MemoryModel.fit(found)

    def sizing_of(self, combination: Combination) -> Sizing | None:
        if combination.label not in self._sized:
            return None
        return self._plain if combination == PLAIN else self._compared

    def drift(self, combination: Combination) -> float | None:
        return 0.0

    def time(
        self,
        policy: Policy,
        *,
        outpaced_below: float | None,
        smaller: Policy | None = None,
        ladder: tuple[Policy, ...] = (),
        measure_seconds: float | None = None,
        expected_gains: tuple[float, ...] = (),
        ladder_seconds: float | None = None,
    ) -> TimeResult:
        self.expected_gains = expected_gains
        self.timed.append((policy, tuple(one.micro_batch for one in ladder)))
        self.seconds.append(measure_seconds)
        key = f"time {len(self.timed)}"
        if policy.micro_batch in self.fails_at:
            return TimeResult(key=key, outcome=Outcome.OUT_OF_MEMORY, reason="it did not fit")
        rungs, best = [], self.rate(policy)
        for one in ladder:
            if one.micro_batch in self.fails_at:
                break
            if one.micro_batch in self.rungs:
                rungs.append(self.rungs[one.micro_batch])
                continue
            rungs.append(Rung(measurement=measurement(self.rate(one), micro_batch=one.micro_batch), speedup=TWICE))
            if self.rate(one) < 1.02 * best:
                break
            best = self.rate(one)
        figures = measurement(self.rate(policy), micro_batch=policy.micro_batch)
        return TimeResult(key=key, outcome=Outcome.OK, measurement=figures, speedup=TWICE, ladder=tuple(rungs))

    def rate(self, policy: Policy) -> float:
        return self.rates.get(policy.micro_batch, 100.0)


def limited(mebibytes: int, **changes: Any) -> Goal:
    return msgspec.structs.replace(goal(), memory_limit_bytes=mebibytes * MIB, **changes)


def evaluator(trials: Any, aim: Goal | None = None, *, seconds: float = 240.0) -> ComparingEvaluator:
    """With four seconds for the turns of a combination, unless a test says otherwise."""
    aim = aim or limited(20_000)
    return ComparingEvaluator(study(aim, budget=TimeBudget(seconds, clock=lambda: 0.0)), trials)


# ---- the baseline


def test_the_baseline_takes_the_time_of_one_combinations_turns() -> None:
    """Others are measured relative to it, alternating with it: its own throughput only needs to be roughly known."""
    trials = FakeTrials(growing=0.001)
    found = evaluator(trials).baseline()
    assert found is not None
    assert (found.role, found.outcome) == (Role.BASELINE, Outcome.OK)
    assert trials.seconds == [4.0]


# ---- the batch to compare at


def test_where_steps_are_mostly_work_combinations_are_compared_at_the_users_own_batch() -> None:
    trials = FakeTrials(growing=0.001)
    assert evaluator(trials).baseline_is(baseline(100, micro_batch=8)) == []
    assert trials.turns.compare_at == 8
    assert trials.timed == [], "that is the baseline"


def test_an_own_batch_of_any_size_is_kept_as_it_is() -> None:
    trials = FakeTrials(growing=0.001)
    evaluator(trials).baseline_is(baseline(100, micro_batch=37))
    assert trials.turns.compare_at == 37


def test_where_a_small_batch_hardly_uses_the_device_combinations_are_compared_at_an_efficient_one() -> None:
    """0.02 s whatever the batch and 0.001 s for each sample: at 80 samples four fifths of a step are work on them."""
    trials = FakeTrials(fixed=0.02, growing=0.001)
    found = evaluator(trials).baseline_is(baseline(100, micro_batch=8))
    assert trials.turns.compare_at == 80
    (plain,) = found
    assert plain.policy == Policy(micro_batch=80)
    assert (plain.role, plain.outcome) == (Role.SEARCHED, Outcome.OK)
    assert plain.speedup == TWICE, "in turn with the baseline"


def test_where_plain_training_fails_at_the_batch_to_compare_at_the_users_own_is_taken() -> None:
    """Trap: a model that takes at most 100 samples was compared at 192, where every combination failed."""
    trials = FakeTrials(fixed=0.02, growing=0.001, fails_at=(80,))
    (failed,) = evaluator(trials).baseline_is(baseline(100, micro_batch=8))
    assert (failed.policy.micro_batch, failed.outcome) == (80, Outcome.OUT_OF_MEMORY)
    assert trials.turns.compare_at == 8


def test_a_batch_to_compare_at_leaves_time_for_two_rounds_of_turns() -> None:
    """Of four seconds: a step of each training in each round."""
    trials = FakeTrials(fixed=0.4, growing=0.02)
    evaluator(trials).baseline_is(baseline(100, micro_batch=2))
    assert trials.turns.compare_at is not None
    assert 2 < trials.turns.compare_at < 80
    assert 0.4 + 0.02 * trials.turns.compare_at <= 1.0


def test_an_own_batch_that_one_step_takes_too_long_with_is_not_compared_at() -> None:
    trials = FakeTrials(growing=0.1)
    evaluator(trials).baseline_is(baseline(100, micro_batch=64))
    assert trials.turns.compare_at is not None
    assert 1 <= trials.turns.compare_at <= 10


def test_a_batch_to_compare_at_fits_in_memory() -> None:
    trials = FakeTrials(fixed=0.02, growing=0.001)
    evaluator(trials, limited(500)).baseline_is(baseline(100, micro_batch=8))
    assert trials.turns.compare_at == 36, "of 475 MiB that may be used, 100 do not grow"


def test_a_batch_to_compare_at_is_no_larger_than_a_global_batch() -> None:
    trials = FakeTrials(fixed=0.02, growing=0.001)
    (plain,) = evaluator(trials, limited(20_000, global_batch=32)).baseline_is(baseline(100, micro_batch=8))
    assert trials.turns.compare_at == 32
    assert plain.policy.global_batch == 32


@pytest.mark.parametrize("failed", [None, Outcome.OUT_OF_MEMORY])
def test_without_figures_of_a_baseline_nobody_takes_turns_with_it(failed: Outcome | None) -> None:
    trials = FakeTrials()
    lost = None if failed is None else msgspec.structs.replace(baseline(100), outcome=failed, measurement=None)
    assert evaluator(trials).baseline_is(lost) == []
    assert trials.turns.baseline is None
    assert trials.turns.compare_at is None


@pytest.mark.parametrize("plain_fits", [True, False], ids=["not at the user's batch", "not at any"])
def test_where_plain_training_does_not_fit_a_ladder_begins_where_steps_are_mostly_work(
    plain_fits: bool,
) -> None:
    """Trap: it began at one sample, so that the hand-tuned default ended at 64, where hundreds would have fit."""
    trials = FakeTrials(plain_fits=plain_fits, fixed=0.006, growing=0.0001)
    found = evaluator(trials, limited(1000))
    found.baseline_is(msgspec.structs.replace(baseline(100), outcome=Outcome.SCREENED, measurement=None))
    assert trials.turns.compare_at is None
    found.time_at_once(CHECKPOINT, Role.HAND_TUNED)
    ((first, ladder),) = trials.timed
    assert first.micro_batch == 80, "the largest that fits; 240 samples would take four fifths of a step"
    assert ladder == ()


# ---- comparing


def test_beside_settings_of_the_users_own_plain_training_is_timed_in_turn_too() -> None:
    trials = FakeTrials(growing=0.001)
    own = measured(100, use("checkpoint", every=1), micro_batch=8, role=Role.BASELINE)
    (plain,) = evaluator(trials).baseline_is(own)
    assert trials.turns.baseline == own
    assert (plain.policy, plain.role) == (Policy(micro_batch=8), Role.SEARCHED)


def test_where_plain_training_does_not_fit_the_users_own_settings_still_take_turns() -> None:
    trials = FakeTrials(plain_fits=False)
    own = measured(100, use("checkpoint", every=1), micro_batch=8, role=Role.BASELINE)
    assert evaluator(trials).baseline_is(own) == []
    assert (trials.turns.baseline, trials.turns.compare_at) == (own, None)


def test_what_is_compared_is_not_timed() -> None:
    trials = FakeTrials(growing=0.001)
    found = evaluator(trials)
    found.baseline_is(baseline(100))
    evaluation = found.compare(CHECKPOINT, Role.SEARCHED)
    candidate = evaluation.candidate
    assert candidate.outcome is Outcome.COMPARED
    assert candidate.measurement is None
    assert candidate.comparison is not None
    assert candidate.comparison.speedup == TWICE
    assert evaluation.expected_rate == candidate.comparison.expected_samples_per_second
    assert "2.00 times plain training in turn at batch 4" in candidate.reason
    assert candidate.loss_drift == 0.0
    assert trials.timed == []


def test_what_fails_in_profiling_runs_or_does_not_fit_is_told_as_ever() -> None:
    failed = evaluator(FakeTrials(fails=Outcome.FAILED)).compare(CHECKPOINT, Role.SEARCHED)
    assert failed.candidate.outcome is Outcome.FAILED
    assert failed.settles_combination
    too_big = evaluator(FakeTrials(), limited(90)).compare(CHECKPOINT, Role.SEARCHED)
    assert too_big.candidate.outcome is Outcome.SCREENED
    assert too_big.settles_combination


def test_where_plain_training_does_not_run_what_does_has_figures_of_its_own() -> None:
    """A model that only fits with methods is the one that needs them most."""
    trials = FakeTrials(plain_fits=False, growing=0.001)
    found = evaluator(trials, limited(1000))
    found.baseline_is(msgspec.structs.replace(baseline(100), outcome=Outcome.OUT_OF_MEMORY, measurement=None))
    candidate = found.compare(CHECKPOINT, Role.SEARCHED).candidate
    assert candidate.outcome is Outcome.OK
    assert candidate.measurement is not None
    assert candidate.policy.micro_batch == 80, "the largest that fits"


# ---- timing what may lead


def compared(found: ComparingEvaluator, combination: Combination, role: Role = Role.SEARCHED) -> Candidate:
    candidate = found.compare(combination, role).candidate
    assert candidate.outcome is Outcome.COMPARED
    return candidate


def test_a_ladder_doubles_the_batch_up_to_the_largest() -> None:
    trials = FakeTrials(growing=0.001)
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_leader(compared(found, CHECKPOINT), best=None)
    ((first, ladder),) = trials.timed
    assert first.micro_batch == 8
    assert ladder == (16, 32, 64, 80), "950 MiB hold 85 samples"


def test_no_ladder_is_endless() -> None:
    trials = FakeTrials(growing=0.00001)
    found = evaluator(trials, limited(2_000_000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_leader(compared(found, CHECKPOINT), best=None)
    assert trials.timed[0][1] == (16, 32, 64, 128, 256, 512)


def test_batches_of_a_ladder_divide_a_global_batch() -> None:
    trials = FakeTrials(growing=0.001)
    found = evaluator(trials, limited(1000, global_batch=96, fidelity=Fidelity.MODEL))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_leader(compared(found, CHECKPOINT), best=None)
    ((first, ladder),) = trials.timed
    assert first.global_batch == 96
    assert all(96 % batch == 0 for batch in (first.micro_batch, *ladder))
    assert list(ladder) == sorted(set(ladder))


def test_the_best_rung_leads_and_the_others_are_written_down() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 170})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    evaluation = found.time_leader(compared(found, CHECKPOINT, Role.HAND_TUNED), best=None)
    best = evaluation.candidate
    assert best.policy.micro_batch == 32
    assert best.role is Role.HAND_TUNED
    assert best.measurement is not None
    assert best.measurement.samples_per_second == 180
    assert best.speedup == TWICE
    assert best.comparison is not None
    assert best.comparison.at_batch == 32, "what was expected of it there"
    assert [one.policy.micro_batch for one in evaluation.before] == [8, 16, 64]
    assert {one.role for one in evaluation.before} == {Role.SEARCHED}
    assert {one.trial_key for one in (best, *evaluation.before)} == {best.trial_key}


def test_each_batch_of_a_ladder_is_expected_to_gain_as_its_profiling_runs_say() -> None:
    trials = FakeTrials(fixed=0.016, growing=0.001)
    found = evaluator(trials, limited(4000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_leader(compared(found, CHECKPOINT), best=None)
    first, ladder = trials.timed[-1]
    assert len(ladder) > 1
    rates = [batch / (0.016 + 0.001 * batch) for batch in (first.micro_batch, *ladder)]
    assert trials.expected_gains == pytest.approx([later / before for before, later in itertools.pairwise(rates)])


def test_a_batch_that_was_measured_after_a_larger_one_knows_how_that_compares() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100}, fails_at=(36,))
    over_first = Speedup(value=1.2, low=1.1, high=1.3, rounds=3)
    over_larger = Speedup(value=1.25, low=1.2, high=1.3, rounds=2)
    trials.rungs = {
        16: Rung(measurement=measurement(150, micro_batch=16), speedup=TWICE, gain=over_larger, over=32),
        32: Rung(measurement=measurement(120, micro_batch=32), speedup=TWICE, gain=over_first, over=8),
    }
    found = evaluator(trials, limited(500))
    found.baseline_is(baseline(100, micro_batch=8))
    evaluation = found.time_leader(compared(found, CHECKPOINT), best=None)
    assert evaluation.candidate.policy.micro_batch == 16
    assert evaluation.candidate.gain_of_larger == over_larger.inverse
    assert {one.policy.micro_batch: one.gain_of_larger for one in evaluation.before} == {8: over_first, 32: None}


def test_of_two_larger_batches_the_better_one_counts() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100}, fails_at=(36,))
    better, worse = (Speedup(value=value, low=value - 0.1, high=value + 0.1, rounds=3) for value in (1.12, 1.01))
    trials.rungs = {
        batch: Rung(measurement=measurement(100 * gain.value, micro_batch=batch), speedup=TWICE, gain=gain, over=8)
        for batch, gain in ((16, better), (32, worse))
    }
    found = evaluator(trials, limited(500))
    found.baseline_is(baseline(100, micro_batch=8))
    evaluation = found.time_leader(compared(found, CHECKPOINT), best=None)
    assert {one.policy.micro_batch: one.gain_of_larger for one in evaluation.before} == {8: better, 32: None}


def test_what_is_timed_at_once_has_its_ladder_without_having_been_compared() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 170})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    evaluation = found.time_at_once(CHECKPOINT, Role.HAND_TUNED)
    assert evaluation.candidate.policy.micro_batch == 32
    assert evaluation.candidate.role is Role.HAND_TUNED
    assert [one.policy.micro_batch for one in evaluation.before] == [8, 16, 64]
    assert trials.alone == [CHECKPOINT.label], "turns in profiling runs would say what the ladder says"
    failed = evaluator(FakeTrials(fails=Outcome.FAILED)).time_at_once(CHECKPOINT, Role.HAND_TUNED)
    assert failed.candidate.outcome is Outcome.FAILED


def test_what_sets_the_pace_leads_at_its_best_batch() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 170})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_at_once(CHECKPOINT, Role.HAND_TUNED)
    assert trials.turns.pacesetter == CHECKPOINT
    assert trials.turns.leader is not None
    assert trials.turns.leader.policy.micro_batch == 32


def test_a_leader_that_trains_wrongly_decides_nothing_for_others() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 170})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    before = vars(trials.turns).copy()
    leader = found.time_at_once(CHECKPOINT, Role.HAND_TUNED).candidate
    found.withdraw(compared(found, BF16))
    assert trials.turns.pacesetter == CHECKPOINT, "another one was withdrawn"
    found.withdraw(leader)
    assert {name for name, value in vars(trials.turns).items() if value != before[name]} == {"_before"}


def test_nothing_is_compared_at_a_batch_above_those_at_which_the_pace_was_set() -> None:
    """Trap: a ladder ended at 64 samples, the next batch failed, and every combination was compared at 192."""
    trials = FakeTrials(fixed=0.02, growing=0.001, rates={8: 100, 16: 150, 32: 180}, fails_at=(64, 80))
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_at_once(CHECKPOINT, Role.HAND_TUNED)
    assert trials.turns.pacesetter == CHECKPOINT
    assert trials.turns.compare_at == 32


def test_after_a_ladder_that_peaked_the_next_leader_is_timed_there_alone() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 170})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    for combination in (CHECKPOINT, BF16, Combination((*CHECKPOINT.settings, *BF16.settings))):
        found.time_leader(compared(found, combination), best=None)
    assert [(policy.micro_batch, ladder) for policy, ladder in trials.timed] == [
        (8, (16, 32, 64, 80)),
        (32, ()),
        (32, ()),
    ]


def test_what_is_compared_after_a_ladder_is_expected_where_that_was_best() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 170})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_leader(compared(found, CHECKPOINT), best=None)
    assert compared(found, BF16).policy.micro_batch == 32


def test_where_the_largest_batch_was_best_the_next_leader_goes_on_from_there() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 200, 80: 210})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_leader(compared(found, CHECKPOINT), best=None)
    found._goal = limited(2000)
    found.time_leader(compared(found, BF16), best=None)
    assert [(policy.micro_batch, ladder) for policy, ladder in trials.timed] == [
        (8, (16, 32, 64, 80)),
        (80, (160, 176)),
    ]


def test_a_leader_with_memory_for_fewer_samples_says_nothing_of_the_best_batch_of_others() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 200, 80: 210})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    found.time_leader(compared(found, CHECKPOINT), best=None)
    found._goal = limited(500)
    found.time_leader(compared(found, BF16), best=None)
    assert trials.timed[-1][0].micro_batch < 80
    found._goal = limited(1000)
    assert compared(found, Combination((use("fused_optimizer"),))).policy.micro_batch == 80


def test_what_compiles_is_timed_at_the_best_batch_that_is_known_and_compiled_for_no_other() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150, 32: 180, 64: 200, 80: 210})
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    for combination in (CHECKPOINT, Combination((use("compile", scope="model"),))):
        found.time_leader(compared(found, combination), best=None)
    assert [(policy.micro_batch, ladder) for policy, ladder in trials.timed] == [(8, (16, 32, 64, 80)), (80, ())]


def test_a_rung_that_does_not_fit_leaves_those_below_it() -> None:
    trials = FakeTrials(growing=0.001, rates={8: 100, 16: 150}, fails_at=(32,))
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=8))
    evaluation = found.time_leader(compared(found, CHECKPOINT), best=None)
    assert evaluation.candidate.policy.micro_batch == 16
    assert evaluation.candidate.outcome is Outcome.OK


def test_a_leader_that_does_not_fit_is_tried_at_smaller_batches() -> None:
    trials = FakeTrials(growing=0.001, fails_at=(32,))
    found = evaluator(trials, limited(1000))
    found.baseline_is(baseline(100, micro_batch=32))
    evaluation = found.time_leader(compared(found, CHECKPOINT), best=None)
    assert [one.outcome for one in evaluation.before] == [Outcome.OUT_OF_MEMORY]
    assert evaluation.candidate.outcome is Outcome.OK
    assert evaluation.candidate.policy.micro_batch == 26, "85 % of it, and a size that kernels like"


# ---- a study that is gone on with


def test_it_compares_as_it_did_when_the_earlier_run_ended() -> None:
    leader = msgspec.structs.replace(measured(300, *BF16.settings, micro_batch=8), speedup=TWICE)
    beside = Comparison(
        speedup=TWICE,
        beside=BF16.label,
        micro_batch=16,
        at_batch=32,
        expected_samples_per_second=200.0,
        expected_error=0.1,
    )
    lucky = msgspec.structs.replace(leader, measurement=measurement(350, micro_batch=8))
    earlier = [leader, lucky, msgspec.structs.replace(compared_candidate(CHECKPOINT), comparison=beside)]
    trials = FakeTrials(growing=0.001)
    evaluator(trials).baseline_is(baseline(100), [baseline(100), *earlier])
    assert trials.turns.pacesetter == BF16
    assert trials.turns.compare_at == 16
    assert trials.turns.leader == leader, "and no repetition of it, of which the luckiest would be taken"
    hopeless = msgspec.structs.replace(beside, micro_batch=4, speedup=Speedup(value=0.3, low=0.2, high=0.4, rounds=1))
    slow = msgspec.structs.replace(hopeless, micro_batch=16)
    more = [msgspec.structs.replace(compared_candidate(CHECKPOINT), comparison=one) for one in (beside, hopeless, slow)]
    for others in (more, more[1:]):
        third = FakeTrials(growing=0.001)
        evaluator(third).baseline_is(baseline(100), [baseline(100), leader, *others])
        assert third.turns.compare_at == 16, "what was hopeless was compared before it came there"
    broken = msgspec.structs.replace(leader, guard=guard_found(0.4, excess=2.0))
    fourth = FakeTrials(growing=0.001)
    evaluator(fourth).baseline_is(baseline(100), [baseline(100), broken, *more])
    assert fourth.turns.pacesetter == PLAIN, "that one trains wrongly"
    anew = FakeTrials(growing=0.001)
    evaluator(anew).baseline_is(baseline(100), [baseline(100), leader])
    assert anew.turns.pacesetter == PLAIN, "nobody was compared with it yet"


def compared_candidate(combination: Combination) -> Candidate:
    return msgspec.structs.replace(
        measured(100, *combination.settings), outcome=Outcome.COMPARED, measurement=None, reason="compared"
    )
