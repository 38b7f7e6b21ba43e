"""A combination becomes a candidate: every way to end has an outcome and a reason."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Role
from advisor.goal import Goal, GoalKind
from advisor.measure.measurement import Sizing
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.trials.evaluate import Evaluator
from advisor.trial.outcome import Outcome
from advisor.trial.result import SizeResult, TimeResult
from advisor.workload.facts import Facts
from tests.decide.examples import baseline, goal, measurement
from tests.search.test_build_space import FACTS
from tests.session.contexts import study

MIB = 2**20
PLAIN = Combination()
CHECKPOINT = Combination((use("checkpoint", every=1),))


class FakeTrials:
    """Needs 100 MiB and 10 MiB per sample, 0.01 s per sample; runs what fits below a secret limit."""

    def __init__(self, *, really_fits: int = 1000, fails: Outcome | None = None) -> None:
        self.first_batch = 2
        self.most_samples: int | None = None
        self.really_fits = really_fits
        self.fails = fails
        self.timed: list[int] = []
        self.sized: list[Combination] = []
        self.models: dict[str, MemoryModel] = {}
        self.losses: dict[str, Sizing] = {}

    def reference(self, gpu_count: int) -> Combination:
        return PLAIN if gpu_count == 1 else Combination((use("ddp"),), gpu_count)

    def size(
        self, combination: Combination, largest: int | None, *, alone: bool = False
    ) -> tuple[MemoryModel | None, SizeResult]:
        self.sized.append(combination)
        if self.fails is not None:
            return None, SizeResult(key="size", outcome=self.fails, reason="it was told to")
        model = MemoryModel(lines=(Line(100 * MIB, 10 * MIB),), time=Line(0, 0.01))
        self.models[combination.label] = model
        settled = {setting.name: "this" for setting in combination.settings}
        self.losses[combination.label] = Sizing(points=(), out_of_memory_at=None, loss_trace=(1.0,), settled=settled)
        return model, SizeResult(key="size", outcome=Outcome.OK)

    def model_of(self, combination: Combination) -> MemoryModel | None:
        return self.models.get(combination.label)

    def sizing_of(self, combination: Combination) -> Sizing | None:
        return self.losses.get(combination.label)

    def drift(self, combination: Combination) -> float | None:
        return 0.0 if PLAIN.label in self.losses else None

    def time(self, policy: Policy, *, outpaced_below: float | None, smaller: Policy | None = None) -> TimeResult:
        self.timed.append(policy.micro_batch)
        if policy.micro_batch > self.really_fits:
            return TimeResult(key="time", outcome=Outcome.OUT_OF_MEMORY, reason="it did not fit")
        faster = None if smaller is None else measurement(120.0, micro_batch=smaller.micro_batch)
        return TimeResult(key="time", outcome=Outcome.OK, measurement=measurement(100.0), smaller=faster)


def evaluator(trials: Any, aim: Goal | None = None, facts: Facts = FACTS, *, times_half: bool = False) -> Evaluator:
    aim = aim or limited(1100)
    return Evaluator(study(aim, seconds=10_000.0, facts=facts), trials, times_half=times_half)


def limited(mebibytes: int, **changes: Any) -> Goal:
    return msgspec.structs.replace(goal(), memory_limit_bytes=mebibytes * MIB, **changes)


def test_the_batch_is_a_fraction_of_the_largest_that_fits() -> None:
    trials = FakeTrials()
    whole = evaluator(trials).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None).candidate
    half = evaluator(trials).evaluate(CHECKPOINT, 0.5, Role.SEARCHED, best=None).candidate
    assert whole.outcome is Outcome.OK
    assert 80 <= whole.policy.micro_batch <= 100
    assert half.policy.micro_batch == pytest.approx(whole.policy.micro_batch / 2, abs=8)


def test_what_is_timed_is_what_the_profiling_runs_settled_on() -> None:
    found = evaluator(FakeTrials(), times_half=True).evaluate(CHECKPOINT, 1.0, Role.HAND_TUNED, best=None)
    assert found.smaller is not None
    for candidate in (found.candidate, found.smaller):
        assert candidate.policy.settled == {"checkpoint": "this"}


def test_half_of_the_batch_is_timed_in_the_same_trial_where_nobody_else_would() -> None:
    trials = FakeTrials()
    found = evaluator(trials, times_half=True).evaluate(CHECKPOINT, 1.0, Role.HAND_TUNED, best=None)
    whole, half = found.candidate, found.smaller
    assert half is not None
    assert half.policy.methods == CHECKPOINT.settings
    assert half.policy.micro_batch == pytest.approx(whole.policy.micro_batch / 2, abs=8)
    assert half.trial_key == whole.trial_key
    assert half.measurement is not None
    assert half.measurement.samples_per_second == 120
    assert (whole.role, half.role) == (Role.HAND_TUNED, Role.SEARCHED)
    assert len(trials.timed) == 1


def test_half_of_the_batch_under_a_global_batch_is_a_divisor_of_it_accumulated() -> None:
    aim = limited(400, global_batch=24)
    found = evaluator(FakeTrials(), aim, times_half=True).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None)
    assert found.smaller is not None
    shapes = [(one.policy.micro_batch, one.policy.accumulation_steps) for one in (found.candidate, found.smaller)]
    assert shapes == [(24, 1), (12, 2)]


@pytest.mark.parametrize(
    ("combination", "aim"),
    [
        # What it compiles for a second batch is for any batch, and slower than what will be run.
        (Combination((use("compile", scope="model"),)), {}),
        # The global batch would be accumulated over two halves, which it refuses.
        (Combination((use("optimizer_in_backward"),)), {"global_batch": 24}),
        (CHECKPOINT, {"global_batch": 1}),
    ],
)
def test_half_of_the_batch_is_not_timed_where_it_would_be_another_training(
    combination: Combination, aim: dict[str, int]
) -> None:
    found = evaluator(FakeTrials(), limited(400, **aim), times_half=True).evaluate(
        combination, 1.0, Role.SEARCHED, best=None
    )
    assert found.candidate.outcome is Outcome.OK
    assert found.smaller is None


def test_plain_training_is_sized_first_so_that_losses_can_be_compared_also_after_a_resume() -> None:
    """The trap: a continued study knows the baseline's result, but not its losses."""
    trials = FakeTrials()
    candidate = evaluator(trials).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None).candidate
    assert trials.sized == [PLAIN, CHECKPOINT]
    assert candidate.loss_drift is not None


def test_what_does_not_fit_is_screened_with_its_need_and_nothing_runs() -> None:
    trials = FakeTrials()
    evaluation = evaluator(trials, limited(90)).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None)
    assert evaluation.candidate.outcome is Outcome.SCREENED
    assert evaluation.candidate.predicted_peak_bytes == 110 * MIB
    assert evaluation.settles_combination
    assert trials.timed == []


def test_what_is_hopelessly_slow_is_screened_unless_it_is_the_hand_tuned_default() -> None:
    trials = FakeTrials()
    slow = evaluator(trials).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=1000.0).candidate
    assert slow.outcome is Outcome.SCREENED
    assert "profiling predicts 100 samples/s" in slow.reason
    assert trials.timed == []
    tuned = evaluator(trials).evaluate(CHECKPOINT, 1.0, Role.HAND_TUNED, best=1000.0).candidate
    assert tuned.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("really_fits", "shares"),
    [(80, [0.85]), (50, [0.85, 0.5]), (10, [0.85, 0.5])],
    ids=["forecast nearly right", "forecast wrong", "forecast far too low"],
)
def test_a_setting_that_runs_out_of_memory_is_tried_at_smaller_batches(really_fits: int, shares: list[float]) -> None:
    trials = FakeTrials(really_fits=really_fits)
    evaluation = evaluator(trials).evaluate(CHECKPOINT, 1.0, Role.HAND_TUNED, best=None)
    first, *others = trials.timed
    assert others == pytest.approx([share * first for share in shares], abs=8)
    fits = others[-1] <= really_fits
    assert evaluation.candidate.outcome is (Outcome.OK if fits else Outcome.OUT_OF_MEMORY)
    assert evaluation.candidate.role is Role.HAND_TUNED
    assert {one.outcome for one in evaluation.before} == {Outcome.OUT_OF_MEMORY}
    assert len(evaluation.before) == len(others), "every try is written down"


def test_no_batch_is_tried_twice_and_none_below_one_sample() -> None:
    trials = FakeTrials(really_fits=0)
    found = evaluator(trials, limited(129)).evaluate(CHECKPOINT, 1.0, Role.HAND_TUNED, best=None)
    assert trials.timed == [2, 1]
    assert found.candidate.outcome is Outcome.OUT_OF_MEMORY


class Flushing(FakeTrials):
    """The allocator flushes its cache above a batch, which slows a step down or does not."""

    def __init__(self, *, above: int, held_up: float) -> None:
        super().__init__()
        self.above = above
        self.held_up = held_up

    def time(self, policy: Policy, *, outpaced_below: float | None, smaller: Policy | None = None) -> TimeResult:
        result = super().time(policy, outpaced_below=outpaced_below, smaller=smaller)
        flushes = 3 if policy.micro_batch > self.above else 0
        figures = measurement(self.held_up if flushes else 100.0, micro_batch=policy.micro_batch)
        memory = msgspec.structs.replace(figures.memory, allocation_retries=flushes)
        return msgspec.structs.replace(result, measurement=msgspec.structs.replace(figures, memory=memory))


def test_a_leader_whose_memory_was_nearly_full_is_tried_with_room_and_the_better_of_the_two_stands() -> None:
    trials = Flushing(above=85, held_up=95.0)
    found = evaluator(trials, times_half=True).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=98.0)
    full, with_room = trials.timed
    assert full > 85 >= with_room >= 80
    assert found.candidate.policy.micro_batch == with_room
    assert [one.policy.micro_batch for one in found.before] == [full]
    assert found.smaller is not None, "half of the batch was timed with the first"
    useless = Flushing(above=85, held_up=105.0)
    found = evaluator(useless, times_half=True).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=98.0)
    assert (found.candidate.policy.micro_batch, found.before[0].policy.micro_batch) == (full, with_room)


def test_what_is_far_from_leading_gets_no_second_trial_for_a_full_memory() -> None:
    trials = Flushing(above=85, held_up=95.0)
    evaluator(trials, times_half=True).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=150.0)
    assert len(trials.timed) == 1


def test_a_searched_combination_that_runs_out_of_memory_is_not_tried_again_at_once() -> None:
    trials = FakeTrials(really_fits=50)
    evaluation = evaluator(trials).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None)
    assert evaluation.candidate.outcome is Outcome.OUT_OF_MEMORY
    assert not evaluation.settles_combination
    assert len(trials.timed) == 1


def test_a_searched_combination_is_tried_again_where_no_smaller_batch_would_be_proposed() -> None:
    trials = FakeTrials(really_fits=50)
    found = evaluator(trials, times_half=True).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None)
    assert [one.outcome for one in found.before] == [Outcome.OUT_OF_MEMORY] * 2
    assert found.candidate.outcome is Outcome.OK
    assert found.smaller is not None


def test_a_failed_sizing_settles_the_combination_with_its_reason() -> None:
    evaluation = evaluator(FakeTrials(fails=Outcome.FAILED)).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None)
    assert evaluation.candidate.outcome is Outcome.FAILED
    assert evaluation.candidate.reason == "it was told to"
    assert evaluation.settles_combination


def test_a_global_batch_is_split_into_micro_batches_that_divide_it() -> None:
    aim = limited(200, global_batch=24)
    candidate = evaluator(FakeTrials(), aim).evaluate(CHECKPOINT, 1.0, Role.SEARCHED, best=None).candidate
    assert candidate.policy.global_batch == 24
    assert candidate.policy.micro_batch in (6, 8)


def test_a_method_that_needs_the_whole_gradient_is_refused_where_the_batch_must_be_split() -> None:
    aim = limited(200, global_batch=24)
    combination = Combination((use("optimizer_in_backward"),))
    evaluation = evaluator(FakeTrials(), aim).evaluate(combination, 1.0, Role.SEARCHED, best=None)
    assert evaluation.candidate.outcome is Outcome.REFUSED
    assert "accumulates" in evaluation.candidate.reason


def test_the_baseline_is_the_users_own_batch_and_is_screened_when_it_cannot_fit() -> None:
    facts = msgspec.structs.replace(FACTS, default_batch=16)
    own = evaluator(FakeTrials(), facts=facts).baseline()
    assert own is not None
    assert own.policy == Policy(micro_batch=16)
    assert own.role is Role.BASELINE
    too_big = evaluator(FakeTrials(), limited(200), facts=facts).baseline()
    assert too_big is not None
    assert too_big.outcome is Outcome.SCREENED


def test_a_batch_that_ran_out_of_memory_is_not_called_too_big_by_a_prediction() -> None:
    """Somebody else may hold the memory."""

    class Full(FakeTrials):
        def model_of(self, combination: Combination) -> MemoryModel | None:
            model = super().model_of(combination)
            return None if model is None else msgspec.structs.replace(model, out_of_memory_at=16)

        def size(self, *arguments: Any, **options: Any) -> tuple[MemoryModel | None, SizeResult]:
            _, result = super().size(*arguments, **options)
            return self.model_of(arguments[0]), result

    found = evaluator(Full(), facts=msgspec.structs.replace(FACTS, default_batch=16)).baseline()
    assert found is not None
    assert found.outcome is Outcome.OUT_OF_MEMORY
    assert found.reason == "a micro-batch of 16 ran out of memory, below 1.07 GiB"
    assert found.predicted_peak_bytes is None


def test_a_batch_that_the_data_cannot_fill_is_not_said_to_need_memory() -> None:
    """Trap: "is predicted to need 0.25 GiB; the limit is 1.07 GiB", of settings of the user's own."""
    trials: Any = FakeTrials()
    trials.runs = SimpleNamespace(why_no_more="make_batch makes no more than 8 samples")
    model = MemoryModel(lines=(Line(100 * MIB, 10 * MIB),), time=Line(0, 0.01), most_samples=8)
    found = evaluator(trials)._make.too_big(Policy(micro_batch=16), Role.BASELINE, model)
    assert found.outcome is Outcome.REFUSED
    assert found.reason == "a micro-batch of 16 cannot be filled: make_batch makes no more than 8 samples"


@pytest.mark.parametrize(("tokens", "usual"), [(1024, 8), (None, 32)], ids=["sequences", "anything else"])
def test_without_a_batch_of_the_users_own_the_baseline_has_a_usual_one_and_a_note_says_so(
    tokens: int | None, usual: int
) -> None:
    facts = msgspec.structs.replace(FACTS, default_batch=None, tokens_per_sample=tokens)
    found = evaluator(FakeTrials(), facts=facts)
    baseline = found.baseline()
    assert baseline is not None
    assert baseline.policy == Policy(micro_batch=usual)
    assert baseline.role is Role.BASELINE
    found.explain_baseline(baseline)
    (note,) = found.notes
    assert f"the model file states no BATCH_SIZE: {usual} samples a step, a usual batch" in note
    assert "Add BATCH_SIZE = N" in note


def test_a_batch_that_is_read_back_from_an_earlier_run_is_explained_as_well_and_ones_own_never() -> None:
    facts = msgspec.structs.replace(FACTS, default_batch=None)
    found = evaluator(FakeTrials(), facts=facts)
    found.explain_baseline(baseline(100, micro_batch=5))
    assert "5 samples a step, a usual batch" in found.notes[0]
    own = evaluator(FakeTrials(), facts=msgspec.structs.replace(FACTS, default_batch=5))
    own.explain_baseline(baseline(100, micro_batch=5))
    assert own.notes == []


def test_a_usual_batch_is_no_larger_than_what_fits_in_memory() -> None:
    """Of 200 MiB five percent stay free and 100 MiB do not grow: 9 samples."""
    facts = msgspec.structs.replace(FACTS, default_batch=None, tokens_per_sample=None)
    found = evaluator(FakeTrials(), limited(200), facts=facts)
    baseline = found.baseline()
    assert baseline is not None
    assert baseline.outcome is Outcome.OK
    assert baseline.policy.micro_batch == 9
    found.explain_baseline(baseline)
    assert any("9 samples a step" in note for note in found.notes)


def test_a_usual_batch_is_no_larger_than_what_a_trial_has_time_for() -> None:
    """0.01 s a sample; of 12 s a trial has two, and a step of it half a second at most."""
    facts = msgspec.structs.replace(FACTS, default_batch=None, tokens_per_sample=None)
    trials: Any = FakeTrials()
    aim = limited(1100)
    slow = Line(0, 0.1)
    trials.size(PLAIN, None)
    trials.models[PLAIN.label] = msgspec.structs.replace(trials.models[PLAIN.label], time=slow)
    found = Evaluator(study(aim, seconds=12.0, facts=facts), trials)
    baseline = found.baseline()
    assert baseline is not None
    assert baseline.policy.micro_batch == 5


def test_one_sample_that_does_not_fit_is_told_of_the_baseline_too() -> None:
    facts = msgspec.structs.replace(FACTS, default_batch=None)
    lost = evaluator(FakeTrials(), limited(90), facts=facts).baseline()
    assert lost is not None
    assert (lost.role, lost.outcome, lost.policy.micro_batch) == (Role.BASELINE, Outcome.SCREENED, 1)


def test_no_usual_batch_is_taken_where_costs_are_compared() -> None:
    facts = msgspec.structs.replace(FACTS, default_batch=None)
    assert evaluator(FakeTrials(), limited(1100, kind=GoalKind.CHEAPEST), facts=facts).baseline() is None


def test_a_usual_batch_is_taken_for_the_baseline_of_a_larger_model_too() -> None:
    facts = msgspec.structs.replace(FACTS, default_batch=None)
    larger = evaluator(FakeTrials(), limited(1100, kind=GoalKind.BIGGER), facts=facts)
    baseline = larger.baseline()
    assert baseline is not None
    larger.explain_baseline(baseline)
    assert f"{baseline.policy.micro_batch} samples a step, a usual batch" in larger.notes[0]


def test_on_several_devices_each_has_its_share_of_batch_and_memory() -> None:
    aim = limited(400, global_batch=24, gpu_counts=(1, 2), shares_memory=True)
    trials = FakeTrials()
    ddp = Combination((use("ddp", bucket_views=True, static_graph=False),), 2)
    candidate = evaluator(trials, aim).evaluate(ddp, 1.0, Role.SEARCHED, best=None).candidate
    assert candidate.policy.gpu_count == 2
    assert candidate.policy.global_batch == 24
    assert candidate.policy.micro_batch <= 9, "200 MiB for each rank, of which 100 do not grow"


@pytest.mark.parametrize(("has_dropout", "drift"), [(False, 0.0), (True, None)])
def test_single_losses_are_no_evidence_where_dropout_draws_other_masks(has_dropout: bool, drift: float | None) -> None:
    facts = msgspec.structs.replace(FACTS, has_dropout=has_dropout)
    combination = Combination((use("channels_last"),))
    found = evaluator(FakeTrials(), facts=facts).evaluate(combination, 1.0, Role.SEARCHED, best=None)
    assert found.candidate.loss_drift == drift


def test_under_a_global_batch_a_usual_micro_batch_divides_it() -> None:
    facts = msgspec.structs.replace(FACTS, default_batch=None)
    baseline = evaluator(FakeTrials(), limited(1100, global_batch=24), facts=facts).baseline()
    assert baseline is not None
    assert (baseline.policy.micro_batch, baseline.policy.accumulation_steps) == (8, 3)
