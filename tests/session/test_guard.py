"""Which runs a comparison takes, what it says when one fails, and that nobody is recommended without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.choose import choose
from advisor.decide.eligible import why_not_eligible
from advisor.errors import NothingMeasuredError
from advisor.goal import Fidelity
from advisor.measure.fidelity import FidelityRecord, GradientError
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.answer.leaders import recommend
from advisor.session.trials.guard import Guard
from advisor.session.trials.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.trial.result import FidelityResult
from advisor.trial.spec import TrialSpec
from advisor.workload.batch_layout import ANY_SIZE
from tests.decide.examples import baseline, goal, measured, on
from tests.session.contexts import study
from tests.session.ledgers import InMemory

BF16, CHECKPOINT, DDP = use("precision", dtype="bf16"), use("checkpoint", every=1), use("ddp")
FALLING = tuple(5.0 - step / 30 for step in range(30))


class FakeTrials:
    """Runs end as they are told to; each is run once, as a runner that stores results does."""

    def __init__(self, *, first_batch: int = 2, size: str = "") -> None:
        self.first_batch = first_batch
        self.size = size
        self.outcomes: dict[str, Outcome] = {}
        self.factor: dict[str, float] = {}
        self.gradients: dict[str, GradientError] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.ran: list[str] = []
        self.sizes: dict[str, FakeTrials] = {}
        self.layout = ANY_SIZE
        self.model: MemoryModel | None = None

    def at_size(self, size: Mapping[str, int | float]) -> FakeTrials:
        return self.sizes.setdefault(str(size), FakeTrials(size=str(size)))

    def model_of(self, combination: Combination) -> MemoryModel | None:
        return self.model

    def reference(self, gpu_count: int) -> Combination:
        return Combination() if gpu_count == 1 else Combination((DDP,), gpu_count)

    def fidelity(
        self,
        combination: Combination,
        micro_batch: int,
        *,
        exact: FidelityResult | None = None,
        other_chance: bool = False,
        passes: int = 1,
    ) -> FidelityResult:
        name = combination.label + (" by chance" if other_chance else "")
        key = f"{name}, batch {micro_batch}"
        assert (exact is None) == (combination == self.reference(combination.gpu_count) and not other_chance)
        self.ran += [key] if key not in self.ran else []
        outcome = self.outcomes.get(key, self.outcomes.get(name, Outcome.OK))
        if outcome is not Outcome.OK:
            return FidelityResult(key=key, outcome=outcome, reason="it was told to.")
        factor = self.factor.get(key, self.factor.get(name, 1.0))
        losses = tuple(loss * factor for loss in FALLING)
        record = FidelityRecord(losses=losses, distinct_batches=4, gradient=self.gradients.get(name))
        return FidelityResult(
            key=key,
            outcome=Outcome.OK,
            fidelity=record,
            wall_seconds=1.0,
            notes=self.notes.get(key, self.notes.get(name, ())),
        )


def guard(trials: Any, *, seconds: float = 1000.0, earlier: list[Candidate] | None = None) -> Guard:
    return Guard(study(seconds=seconds, candidates=earlier or ()), trials)


def bf16(**changes: Any) -> Candidate:
    return measured(150, BF16, fidelity=Fidelity.PRECISION, **changes)


def test_the_reference_run_is_made_once_and_each_combination_once() -> None:
    trials = FakeTrials()
    one = guard(trials)
    first = one.checked(bf16())
    assert first.guard is not None
    assert (first.guard.loss_drift, first.guard.reference, first.guard.micro_batch) == (0.0, "plain", 2)
    assert one.checked(bf16(micro_batch=64)).guard == first.guard, "what is compared are methods, not batches"
    one.checked(measured(150, CHECKPOINT))
    assert trials.ran == ["plain, batch 2", f"{BF16.label}, batch 2", f"{CHECKPOINT.label}, batch 2"]


def test_what_an_earlier_run_of_the_study_compared_is_taken_over() -> None:
    known = guard(FakeTrials()).checked(bf16())
    trials = FakeTrials()
    assert guard(trials, earlier=[known]).checked(bf16(micro_batch=4)).guard == known.guard
    assert trials.ran == []


def test_a_comparison_in_which_a_method_had_nothing_to_do_is_none() -> None:
    """The trap: in two samples nothing was large enough for it, and its loss drifted by exactly 0."""
    idle = "precision changed nothing: no activation has 1024 values"
    trials = FakeTrials()
    trials.notes[BF16.label] = (idle,)
    checked = guard(trials).checked(bf16())
    assert checked.guard is None
    assert checked.not_compared == f"at 2 samples {idle}"
    nor_where_it_was_measured = msgspec.structs.replace(bf16(), notes=(idle,))
    assert guard(trials).checked(nor_where_it_was_measured).guard is not None
    trials.factor[BF16.label] = 1.5
    assert guard(trials).checked(bf16()).guard is not None, "what is wrong is another method's doing"


def test_chance_is_measured_only_for_what_is_beyond_its_class() -> None:
    trials = FakeTrials()
    trials.factor[BF16.label] = 1.015
    one = guard(trials)
    within = one.checked(bf16()).guard
    assert within is not None
    assert within.noise is None
    assert not any("chance" in key for key in trials.ran)
    trials.factor[CHECKPOINT.label] = 1.002
    trials.factor["plain by chance"] = 1.01
    beyond = one.checked(measured(150, CHECKPOINT)).guard
    assert beyond is not None
    assert beyond.noise is not None
    assert beyond.noise.loss_drift == pytest.approx(0.01)


def test_plain_training_itself_has_nothing_to_be_compared_with() -> None:
    trials = FakeTrials()
    one = guard(trials)
    assert one.checked(baseline(100)) == baseline(100)
    assert one.checked(on(2, measured(150, DDP))).guard is None
    assert trials.ran == []


def test_on_several_devices_the_reference_run_is_on_as_many() -> None:
    trials = FakeTrials()
    checked = guard(trials).checked(on(2, measured(150, BF16, DDP, fidelity=Fidelity.PRECISION)))
    assert checked.guard is not None
    assert checked.guard.reference == Combination((DDP,), 2).label


def test_where_two_samples_do_not_fit_one_may() -> None:
    trials = FakeTrials()
    trials.outcomes["plain, batch 2"] = Outcome.OUT_OF_MEMORY
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert checked.guard.micro_batch == 1


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("plain", Outcome.OUT_OF_MEMORY, "plain training does not fit"),
        ("plain", Outcome.DIVERGED, "plain training's own run ended as diverged: it was told to"),
        (BF16.label, Outcome.TIMEOUT, "its run ended as timeout: it was told to"),
        (BF16.label, Outcome.CRASHED, "its run ended as crashed: it was told to"),
    ],
)
def test_a_comparison_that_fails_says_why(name: str, outcome: Outcome, reason: str) -> None:
    trials = FakeTrials()
    trials.outcomes[name] = outcome
    checked = guard(trials).checked(bf16())
    assert checked.guard is None
    assert checked.not_compared == reason


def test_a_loss_that_is_lost_only_here_is_a_finding() -> None:
    trials = FakeTrials()
    trials.outcomes[BF16.label] = Outcome.DIVERGED
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert not checked.guard.is_finite


def steps_of(milliseconds: float) -> MemoryModel:
    """Every sample takes so long."""
    return MemoryModel(lines=(Line(0, 1),), time=Line(0, milliseconds / 1000))


def both(batch: int, label: str = BF16.label) -> list[str]:
    return [f"plain, batch {batch}", f"{label}, batch {batch}"]


def test_what_two_samples_amplify_is_compared_in_the_users_own_batch() -> None:
    """The trap: with normalization over two samples bfloat16 drifts by percents, and by 0.06 % at the user's batch."""
    trials = FakeTrials()
    trials.model = steps_of(0.01)
    trials.factor[f"{BF16.label}, batch 2"] = 1.04
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert (checked.guard.micro_batch, checked.guard.loss_drift) == (8, 0.0)
    assert why_not_eligible(checked, goal(fidelity=Fidelity.PRECISION)) is None
    assert trials.ran == [*both(2), "plain by chance, batch 2", *both(8)]


def test_a_loss_that_is_lost_in_two_samples_alone_is_no_finding() -> None:
    trials = FakeTrials()
    trials.model = steps_of(0.01)
    trials.outcomes[f"{BF16.label}, batch 2"] = Outcome.DIVERGED
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert (checked.guard.micro_batch, checked.guard.loss_drift) == (8, 0.0)


def test_where_plain_training_is_lost_in_two_samples_the_users_own_batch_is_compared() -> None:
    trials = FakeTrials()
    trials.model = steps_of(0.01)
    trials.outcomes["plain, batch 2"] = Outcome.DIVERGED
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert (checked.guard.micro_batch, trials.ran) == (8, ["plain, batch 2", *both(8)])


def test_a_method_without_work_in_two_samples_is_compared_in_more() -> None:
    trials = FakeTrials()
    trials.model = steps_of(0.01)
    trials.notes[f"{BF16.label}, batch 2"] = ("precision changed nothing: no activation has 1024 values",)
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert checked.guard.micro_batch == 8


def test_one_that_trains_wrongly_at_both_is_refused() -> None:
    trials = FakeTrials()
    trials.model = steps_of(0.01)
    trials.factor[BF16.label] = 1.2
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert checked.guard.micro_batch == 8
    assert "training diverges from the reference" in (why_not_eligible(checked, goal()) or "")


@pytest.mark.parametrize(("milliseconds", "batch"), [(1.0, 8), (50.0, 4), (100.0, 2)])
def test_a_larger_batch_is_compared_as_far_as_there_is_time(milliseconds: float, batch: int) -> None:
    """Ten seconds of a long search: 30 steps, which a method may make half as long again."""
    trials = FakeTrials()
    trials.model = steps_of(milliseconds)
    trials.factor[f"{BF16.label}, batch 2"] = 1.04
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert checked.guard.micro_batch == batch


def test_where_a_larger_batch_does_not_fit_the_small_one_decides() -> None:
    trials = FakeTrials()
    trials.model = steps_of(0.01)
    trials.factor[f"{BF16.label}, batch 2"] = 1.04
    trials.outcomes["plain, batch 8"] = Outcome.OUT_OF_MEMORY
    checked = guard(trials).checked(bf16())
    assert checked.guard is not None
    assert checked.guard.micro_batch == 2


def test_only_methods_that_change_what_is_learned_may_learn_less() -> None:
    """The trap: on several devices BatchNorm makes any candidate one of class model, and bf16 no less to be right."""
    trials = FakeTrials()
    lora = use("lora", rank=8)
    trials.factor |= {BF16.label: 1.2, lora.label: 1.2}
    slow = guard(trials).checked(measured(150, lora, fidelity=Fidelity.MODEL))
    broken = guard(trials).checked(measured(150, BF16, fidelity=Fidelity.MODEL))
    aim = goal(fidelity=Fidelity.MODEL)
    assert why_not_eligible(slow, aim) is None
    assert "training diverges from the reference" in (why_not_eligible(broken, aim) or "")


def test_without_time_it_is_not_compared_and_is_when_there_is_some() -> None:
    trials = FakeTrials()
    late = guard(trials, seconds=1e-9).checked(bf16())
    assert (late.guard, late.not_compared) == (None, "no time was left")
    assert trials.ran == []
    later = guard(trials, earlier=[late]).checked(late)
    assert later.guard is not None
    assert later.not_compared == ""


def test_a_size_is_compared_at_that_size_or_where_plain_training_does_not_fit_at_the_models_own() -> None:
    trials = FakeTrials()
    large = msgspec.structs.replace(bf16(), model_size={"layers": 8})
    checked = guard(trials).checked(large)
    assert checked.guard is not None
    assert checked.guard.model_size == {"layers": 8}
    assert trials.ran == []
    trials.at_size({"layers": 8}).outcomes["plain"] = Outcome.OUT_OF_MEMORY
    checked = guard(trials).checked(large)
    assert checked.guard is not None
    assert checked.guard.model_size == {}
    assert trials.ran == ["plain, batch 2", f"{BF16.label}, batch 2"]


# ---- leaders


def decide(candidates: Sequence[Candidate]) -> Recommendation:
    return choose(candidates, goal(), refused_settings={}, untried=0, stopped_because="it ended")


def settle(candidates: list[Candidate], trials: Any, kept: list[Candidate], **options: Any) -> Recommendation:
    ledger = InMemory(candidates)
    answer = recommend(study(ledger=ledger), decide, guard(trials, **options))
    candidates[:], kept[:] = ledger.candidates, ledger.written
    return answer


def test_the_winner_is_compared_whatever_its_class_and_the_next_best_too() -> None:
    kept: list[Candidate] = []
    third = measured(110, use("checkpoint", every=2))
    candidates = [baseline(100), measured(150, CHECKPOINT), measured(120, BF16, fidelity=Fidelity.PRECISION), third]
    answer = settle(candidates, FakeTrials(), kept)
    assert answer.winner.policy.methods == (CHECKPOINT,)
    assert answer.winner.guard is not None
    assert [one.policy.label for one in candidates if one.guard is not None] == [
        measured(1, CHECKPOINT).policy.label,
        measured(1, BF16).policy.label,
    ]
    assert kept == [one for one in candidates if one.guard is not None]


def test_a_winner_that_breaks_its_promise_gives_way_and_all_its_batches_with_it() -> None:
    trials = FakeTrials()
    trials.factor[BF16.label] = 1.2
    kept: list[Candidate] = []
    second = measured(140, BF16, fidelity=Fidelity.PRECISION, micro_batch=64)
    candidates = [baseline(100), bf16(), second, measured(120, CHECKPOINT)]
    answer = settle(candidates, trials, kept)
    assert answer.winner.policy.methods == (CHECKPOINT,)
    assert all(one.guard is not None for one in candidates if one.policy.methods == (BF16,))


def test_when_nobody_is_left_the_reason_is_the_comparison() -> None:
    trials = FakeTrials()
    trials.factor[BF16.label] = 1.2
    with pytest.raises(NothingMeasuredError, match="above the reference run's after 30 steps"):
        settle([bf16()], trials, [])


def test_without_time_the_winner_stands_and_says_that_it_was_not_compared() -> None:
    answer = settle([baseline(100), bf16()], FakeTrials(), [], seconds=1e-9)
    assert answer.winner.policy.methods == (BF16,)
    assert answer.winner.not_compared == "no time was left"


def test_what_an_earlier_run_had_no_time_to_compare_is_compared_now() -> None:
    """The trap: refused for its first three losses, it led nothing, and what does not lead was never compared."""
    doubted = msgspec.structs.replace(bf16(drift=0.03), not_compared="no time was left")
    hopeless = measured(90, CHECKPOINT, drift=0.03)
    trials, kept = FakeTrials(), []  # type: tuple[FakeTrials, list[Candidate]]
    answer = settle([baseline(100), doubted, hopeless], trials, kept)
    assert answer.winner.policy == doubted.policy
    assert [one.policy for one in kept] == [doubted.policy]
    assert trials.ran == ["plain, batch 2", f"{BF16.label}, batch 2"], "what is slower than plain training needs none"


def test_its_first_losses_stand_against_it_while_there_is_no_time() -> None:
    candidates = [baseline(100), bf16(drift=0.03)]
    answer = settle(candidates, FakeTrials(), [], seconds=1e-9)
    assert answer.winner.role is Role.BASELINE
    assert why_not_eligible(candidates[1], goal()) == (
        "loss drift 3.0% is above the tolerance 2.0%, and over more steps it was not compared: no time was left"
    )


def test_after_an_interruption_what_is_known_of_the_methods_holds_for_all_their_batches() -> None:
    trials = FakeTrials()
    trials.factor[BF16.label] = 1.2
    one = guard(trials)
    broken = one.checked(bf16())
    ran = list(trials.ran)
    assert one.remembered(bf16(micro_batch=64)).guard == broken.guard
    assert one.remembered(measured(120, CHECKPOINT)).not_compared == "the search was interrupted"
    assert one.remembered(baseline(100)) == baseline(100)
    assert trials.ran == ran


def test_plain_training_that_wins_is_recommended_as_it_is() -> None:
    kept: list[Candidate] = []
    trials = FakeTrials()
    answer = settle([baseline(100)], trials, kept)
    assert answer.winner.role is Role.BASELINE
    assert (trials.ran, kept) == ([], [])
    assert Policy(micro_batch=8).methods == ()


# ---- time


class NotingRunner:
    """Notes the hard limit of every trial and runs none."""

    def __init__(self) -> None:
        self.limits: list[float] = []

    def run(self, spec: TrialSpec) -> Any:
        self.limits.append(spec.time_limit_seconds)
        return spec.ended(Outcome.FAILED)

    def gradient_file(self, key: str) -> Path:
        return Path(key)


def test_every_trial_of_a_method_that_compiles_may_take_longer(tmp_path: Path) -> None:
    runner = NotingRunner()
    (tmp_path / "wrapper.py").touch()
    aim = msgspec.structs.replace(goal(), memory_limit_bytes=2**30)
    trials = Trials(study(aim, seconds=600.0, usable_bytes=2**30), runner)  # type: ignore[arg-type]
    for one in (use("checkpoint", every=1), use("compile", scope="blocks")):
        policy = Policy(methods=(one,), micro_batch=2)
        trials.size(Combination.of(policy), None)
        trials.time(policy, outpaced_below=None)
        exact = FidelityRecord(losses=(1.0,), distinct_batches=1)
        trials.fidelity(Combination.of(policy), 2, exact=FidelityResult(key="b", outcome=Outcome.OK, fidelity=exact))
        trials.confirm(policy, str(tmp_path / "wrapper.py"), repeat=0)
    half = len(runner.limits) // 2
    more = [later - before for before, later in zip(runner.limits[:half], runner.limits[half:], strict=True)]
    assert len(more) >= 4
    assert more == pytest.approx([100.0] * len(more))
