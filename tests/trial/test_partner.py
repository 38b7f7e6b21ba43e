"""Plain training in a process beside the trials takes turns with them, and is in nobody's way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.measure.measurement import StopReason
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import ConfirmTrial, SizeTrial, TrialSpec
from tests.trial.logged import Logged
from tests.trial.specs import my_children

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_FIRST_STEPS = "first step"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """At its end no process is left, that which takes turns included."""
    with Runner(tmp_path / "study") as runner:
        yield runner
    assert my_children() == []


@pytest.fixture
def workload(tmp_path: Path) -> Logged:
    return Logged(tmp_path / "workload")


def beside(workload: Logged, *, plain: int = 4, **changes: Any) -> TrialSpec:
    """A short trial in turn with plain training."""
    options: dict[str, Any] = {"measure_seconds": 1.0, "turn_seconds": 1.0, **changes}
    if options.get("kind") is not SizeTrial:
        options.setdefault("target_spread", 1.0)
    return workload.spec(beside=Policy(micro_batch=plain), **options)


def test_a_trial_has_a_speedup_where_somebody_takes_turns_and_none_where_nobody_does(
    runner: Runner, workload: Logged
) -> None:
    alone = runner.run(workload.spec(measure_seconds=0.2))
    assert alone.outcome is Outcome.OK
    assert alone.speedup is None
    assert alone.paces == ()
    with_turns = runner.run(beside(workload, micro_batch=8))
    assert with_turns.measurement is not None, with_turns
    assert with_turns.speedup is not None
    assert with_turns.speedup.rounds >= 2
    assert 0 < with_turns.speedup.low < with_turns.speedup.value < with_turns.speedup.high
    assert with_turns.notes == ()
    (pace,) = with_turns.paces
    assert pace.policy == Policy(micro_batch=4)
    assert pace.page_faults is not None
    assert pace.page_faults >= 0
    ratio = with_turns.measurement.samples_per_second / pace.samples_per_second
    assert 0.2 < ratio / with_turns.speedup.value < 5, "of the same turns, however noisy the machine is"


def test_two_equal_trainings_compare_as_about_one(runner: Runner, workload: Logged) -> None:
    found = runner.run(beside(workload, micro_batch=4, repeat=1)).speedup
    assert found is not None
    assert found.high > 0.5
    assert found.low < 2


def test_figures_of_a_trial_in_turn_are_of_its_own_steps(runner: Runner, workload: Logged) -> None:
    result = runner.run(beside(workload, micro_batch=8))
    assert result.measurement is not None
    assert result.speedup is not None
    measured = result.measurement
    assert measured.samples_per_second == pytest.approx(8 / measured.step_seconds)
    assert measured.step_seconds_low < measured.step_seconds < measured.step_seconds_high
    assert measured.step_seconds / measured.step_seconds_low == pytest.approx(
        result.speedup.high / result.speedup.value
    )
    assert measured.stop_reason is StopReason.STEADY
    assert measured.joules_per_step is None, "those of two trainings at once say nothing of one"


def test_it_is_built_once_and_kept_from_trial_to_trial(runner: Runner, workload: Logged) -> None:
    results = [runner.run(beside(workload, micro_batch=8, plain=plain)) for plain in (4, 2, 4)]
    results.append(runner.run(beside(workload, micro_batch=16, kind=SizeTrial, largest_batch=32)))
    assert all(result.outcome is Outcome.OK for result in results)
    assert len(workload.processes("build")) == 1, "the worker built for all of them"
    # One process for each trial that ran (the third had run before), and the one beside them.
    assert len(set(workload.processes(_FIRST_STEPS))) == 4


def test_short_runs_compare_their_last_point_or_the_batch_that_is_asked_for(runner: Runner, workload: Logged) -> None:
    short = {"kind": SizeTrial, "micro_batch": 2, "largest_batch": 4}
    for compare_at, batch in ((None, None), (64, 64)):
        sizing = runner.run(beside(workload, plain=2, compare_at=compare_at, **short)).sizing
        assert sizing is not None
        last = sizing.points[-1]
        assert last.speedup is not None
        assert last.compared_at == (batch or last.micro_batch)
        assert all(point.speedup is None for point in sizing.points[:-1])
        assert last.micro_batch <= 4, "memory is not measured there"


SLOW = """
import time

def compute_loss(model, batch):
    if {who}:
        time.sleep(0.005 * len(batch[0]))
    return torch.nn.functional.cross_entropy(model(batch[0]).float(), batch[1])
"""


@pytest.mark.parametrize(
    ("who", "is_hopeless"),
    [("torch.is_autocast_enabled('cpu')", True), ("True", False)],
    ids=["hopeless", "as slow as the other"],
)
def test_short_runs_of_what_is_hopeless_end_with_a_comparison_at_the_batch_that_shows_it(
    runner: Runner, tmp_path: Path, who: str, is_hopeless: bool
) -> None:
    """A microsecond per sample is expected of plain training: both look hopeless, and in turn one of them is not."""
    slow = Logged(tmp_path / "slow", SLOW.format(who=who))
    asked = slow.spec(
        kind=SizeTrial,
        policy=Policy(methods=(use("precision", dtype="bf16"),), micro_batch=2),
        beside=Policy(micro_batch=2),
        measure_seconds=5.0,
        turn_seconds=1.0,
        largest_batch=16,
        compare_at=32,
        sample_seconds_beside=1e-6,
    )
    result = runner.run(asked)
    assert len(result.paces) == (1 if is_hopeless else 2), "it is looked at once before the comparison"
    sizing = result.sizing
    assert sizing is not None
    *others, last = sizing.points
    assert others
    assert (last.micro_batch < 16) == is_hopeless
    assert last.compared_at == (last.micro_batch if is_hopeless else 32)
    assert last.speedup is not None
    assert (last.speedup.high < 0.5) == is_hopeless
    assert all(point.speedup is None for point in others)


def test_the_batches_of_a_ladder_take_turns_as_well(runner: Runner, workload: Logged) -> None:
    ladder = (Policy(micro_batch=8), Policy(micro_batch=16))
    result = runner.run(beside(workload, micro_batch=4, plain=2, ladder=ladder, turn_seconds=0.5))
    assert result.speedup is not None
    assert result.ladder
    assert [rung.measurement.micro_batch for rung in result.ladder] == [8, 16][: len(result.ladder)]
    before = result.speedup
    for rung in result.ladder:
        assert rung.gain is not None, "each takes turns with the batch before it"
        assert rung.gain.rounds >= 1
        assert rung.speedup is not None
        assert rung.speedup.value == pytest.approx(before.value * rung.gain.value)
        before = rung.speedup


def test_a_batch_of_a_ladder_that_fails_leaves_the_figures_of_those_before_it(runner: Runner, workload: Logged) -> None:
    result = runner.run(beside(workload, micro_batch=2, plain=2, ladder=(Policy(micro_batch=5),)))
    assert result.outcome is Outcome.OK
    assert result.speedup is not None
    assert result.ladder == ()
    assert result.notes == ("batch 5 ended as failed: ValueError: five samples are one too many",)


FAILING = """
def compute_loss(model, batch):
    hidden = model[:4](batch[0])
    if len(hidden) == 16:
        def fail(gradient):
            raise ValueError("sixteen are too many")
        hidden.register_hook(fail)
    return torch.nn.functional.cross_entropy(model[4](hidden), batch[1])
"""
"""Its last layer has a gradient by the time that it fails."""


def test_a_batch_left_out_is_measured_as_if_the_larger_one_had_not_failed_before(
    runner: Runner, tmp_path: Path
) -> None:
    """Trap: the gradients of the pass that failed counted for its peak."""
    failing = Logged(tmp_path / "failing", FAILING)
    ladder = tuple(Policy(micro_batch=batch) for batch in (8, 16, 32))
    asked = {"micro_batch": 4, "ladder": ladder, "measure_seconds": 30.0, "turn_seconds": 0.1}
    before, after = (
        runner.run(failing.spec(expected_gains=gains, repeat=number, **asked))
        for number, gains in enumerate(((), (1.4, 1.2, 1.1)))
    )
    for result in (before, after):
        assert [rung.measurement.micro_batch for rung in result.ladder] == [8]
        assert result.notes == ("batch 16 ended as failed: ValueError: sixteen are too many",)
    # What a process held at most includes the libraries, and differs from one to the next.
    counted = [
        msgspec.structs.replace(result.ladder[0].measurement.memory, peak_resident_bytes=None)
        for result in (before, after)
    ]
    assert counted[0] == counted[1]


def test_where_plain_training_fails_the_trial_has_figures_without_a_speedup_and_says_so(
    runner: Runner, workload: Logged
) -> None:
    result = runner.run(beside(workload, micro_batch=8, plain=5))
    assert result.outcome is Outcome.OK
    assert result.measurement is not None
    assert result.speedup is None
    (note,) = result.notes
    assert note == (
        "not compared in turn: the training beside it ended as failed: ValueError: five samples are one too many"
    )
    assert runner.run(beside(workload, micro_batch=8)).speedup is not None, "the next trial has somebody again"


def test_a_model_that_ends_its_partner_costs_no_measurements(runner: Runner, tmp_path: Path) -> None:
    fatal = Logged(
        tmp_path / "workload",
        "plain_loss = compute_loss\n\n\ndef compute_loss(model, batch):\n    if len(batch[0]) == 3:\n"
        "        os._exit(3)\n    return plain_loss(model, batch)",
    )
    result = runner.run(beside(fatal, micro_batch=8, plain=3))
    assert result.outcome is Outcome.OK
    assert result.measurement is not None
    assert result.speedup is None
    assert result.notes == ("not compared in turn: the process beside it has ended",)
    following = runner.run(beside(fatal, micro_batch=8, plain=4))
    assert following.outcome is Outcome.OK
    assert following.speedup is None
    assert "the process beside it" in following.notes[0]


def test_what_the_training_beside_a_trial_sets_up_for_each_shape_is_no_part_of_its_turns(
    runner: Runner, tmp_path: Path
) -> None:
    """As a compiler does for batches that are padded to their longest sample."""
    padded = Logged(
        tmp_path / "workload",
        "import time\nSEEN = set()\nplain_batch, plain_loss = make_batch, compute_loss\n\n\n"
        "def make_batch(batch_size):\n    inputs, labels = plain_batch(batch_size)\n"
        "    return inputs, labels, torch.zeros(batch_size, 4 + torch.initial_seed() % 2)\n\n\n"
        "def compute_loss(model, batch):\n    if batch[2].shape not in SEEN:\n        time.sleep(2)\n"
        "    SEEN.add(batch[2].shape)\n    return plain_loss(model, batch[:2])",
    )
    result = runner.run(beside(padded, micro_batch=8))
    assert result.outcome is Outcome.OK, result
    (pace,) = result.paces
    assert pace.samples_per_second > 4 / 0.02, "a turn in which it waited takes a second a step: 40 samples/s in all"


def test_a_trial_that_ends_its_process_in_a_turn_does_not_disturb_the_next_one(runner: Runner, tmp_path: Path) -> None:
    fatal = Logged(
        tmp_path / "workload",
        "CALLS = []\nplain_loss = compute_loss\n\n\ndef compute_loss(model, batch):\n    CALLS.append(1)\n"
        "    if len(batch[0]) == 6 and len(CALLS) > 10:\n        raise ValueError('in the middle of it')\n"
        "    return plain_loss(model, batch)",
    )
    failed = runner.run(beside(fatal, micro_batch=6))
    assert failed.outcome is Outcome.FAILED
    following = runner.run(beside(fatal, micro_batch=8))
    assert following.warm
    assert following.speedup is not None


def test_a_trial_that_needs_all_memory_makes_it_give_up_its_training(runner: Runner, workload: Logged) -> None:
    runner.run(beside(workload, micro_batch=8))
    assert len(workload.processes("build")) == 1
    runner.run(workload.spec(needs_all_memory=True, measure_seconds=0.2, repeat=1))
    runner.run(beside(workload, micro_batch=8, repeat=2))
    worker, again = workload.processes("build")
    assert again != worker
    assert again in workload.processes(_FIRST_STEPS), "the process beside built it anew when it was asked for a turn"


def test_a_confirmation_takes_turns_in_fresh_processes(runner: Runner, workload: Logged, tmp_path: Path) -> None:
    policy = Policy(methods=(use("precision", dtype="bf16"),), micro_batch=8)
    wrapper = tmp_path / "wrapper.py"
    write_wrapper(policy, wrapper, headline="For a test.", details="Nothing measured.")
    searched = runner.run(beside(workload, policy=policy))
    before = set(workload.processes("import"))
    options: dict[str, Any] = {"wrapper_path": str(wrapper), "wrapper_text": wrapper.read_text()}
    confirmed = runner.run(beside(workload, kind=ConfirmTrial, policy=policy, **options))
    assert searched.speedup is not None
    assert confirmed.outcome is Outcome.OK, confirmed
    assert confirmed.speedup is not None
    fresh = set(workload.processes("import")) - before
    assert len(fresh) == 2, "the wrapper's and the baseline's, which share nothing that was loaded or built"
    assert my_children() == []
