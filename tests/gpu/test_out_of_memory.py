"""Memory of the device that runs out, in every kind of trial: a named outcome, and a next trial that works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch

from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import SizeResult, TimedResult, TrialResult
from advisor.trial.spec import (
    ConfirmTrial,
    CountTrial,
    LookTrial,
    PlainLoopTrial,
    PredictTrial,
    ProbeTrial,
    SizeTrial,
    TimeTrial,
    Trial,
    TrialSpec,
    VerifyTrial,
)
from tests.gpu.unruly import Unruly
from tests.trial.specs import my_children

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("whatever_is_computed"),
]

TOO_MUCH = "takes too much"
PLAIN, LARGER = Policy(micro_batch=4), Policy(micro_batch=8)
ON_TWO = Policy(methods=(use("ddp", bucket_views=True, static_graph=False),), micro_batch=4, gpu_count=2)

WITHOUT_MEMORY = (LookTrial, CountTrial, PredictTrial, VerifyTrial)
"""Kinds that take none of the device, or need a plain loop before (see the test after)."""


@pytest.fixture(scope="module")
def runner(cuda: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


@pytest.fixture
def unruly(tmp_path: Path) -> Unruly:
    return Unruly(tmp_path)


def goes_on(runner: Runner, unruly: Unruly, policy: Policy = PLAIN) -> None:
    """The next trial works, and the memory of what failed is nobody's any more."""
    after = runner.run(unruly.trial(SizeTrial, policy=policy, largest_batch=4))
    assert after.outcome is Outcome.OK, after


def with_wrapper(trial: TrialSpec, folder: Path) -> TrialSpec:
    wrapper = folder / "wrapper.py"
    write_wrapper(trial.policy, wrapper, headline="For a test.", details="Nothing measured.")
    return msgspec.structs.replace(trial, wrapper_path=str(wrapper))


@pytest.mark.parametrize("kind", [kind for kind in get_args(TrialSpec) if kind not in WITHOUT_MEMORY])
def test_every_kind_of_trial_says_that_memory_ran_out(kind: type[Trial[Any]], runner: Runner, unruly: Unruly) -> None:
    trial = unruly.trial(kind, TOO_MUCH)
    if kind is ConfirmTrial:
        trial = with_wrapper(trial, unruly.folder)
    result = runner.run(trial)
    if kind is ProbeTrial:
        # A model that only fits with methods is one to advise on.
        assert result.outcome is Outcome.OK, result
        assert result.facts is not None
        assert result.facts.first_loss is None
    else:
        assert result.outcome is Outcome.OUT_OF_MEMORY, result
        assert result.reason.startswith("memory must stay within 1.00 GiB, but: CUDA out of memory.")
    if kind is TimeTrial:  # one stands for all: it takes seconds
        goes_on(runner, unruly)


def test_steps_of_a_wrapper_that_run_out_are_told_from_those_of_the_plain_loop(runner: Runner, unruly: Unruly) -> None:
    gradient = unruly.folder / "gradient" / "gradient.pt"
    gradient.parent.mkdir()
    plain = runner.run(unruly.trial(PlainLoopTrial, write_gradient_to=str(gradient)))
    assert plain.outcome is Outcome.OK, plain
    wrapped = with_wrapper(unruly.trial(VerifyTrial, TOO_MUCH, reference_gradient=str(gradient)), unruly.folder)
    assert runner.run(wrapped).outcome is Outcome.OUT_OF_MEMORY


def test_short_runs_keep_the_batches_that_went_well(runner: Runner, unruly: Unruly) -> None:
    result = runner.run(unruly.trial(SizeTrial, TOO_MUCH, above=4, measure_seconds=60.0))
    assert result.outcome is Outcome.OK, result
    assert result.sizing is not None
    assert [point.micro_batch for point in result.sizing.points] == [4]
    assert result.sizing.out_of_memory_at is not None


@pytest.mark.parametrize(
    ("kind", "where", "changes", "note"),
    [
        (SizeTrial, "_compared", {"beside": PLAIN, "compare_at": 16, "largest_batch": 4}, "16 did not fit"),
        (TimeTrial, "climb", {"ladder": (LARGER,)}, "batch 8 ended as out of memory"),
        (TimeTrial, "measure_smaller", {"policy": LARGER, "smaller": PLAIN}, "ended as out of memory"),
        (TimeTrial, "beside", {"beside": PLAIN}, "the training beside it ended as out of memory"),
        (ConfirmTrial, "beside", {"beside": PLAIN}, "the training beside it ended as out of memory"),
    ],
    ids=["compared in short steps", "a larger batch", "a smaller batch", "timed in turn", "confirmed in turn"],
)
def test_what_was_measured_before_stands(
    kind: type[Trial[Any]], where: str, changes: dict[str, Any], note: str, runner: Runner, unruly: Unruly
) -> None:
    trial = unruly.trial(kind, TOO_MUCH, where, turn_seconds=0.1, **changes)
    if kind is ConfirmTrial:
        trial = with_wrapper(trial, unruly.folder)
    result = runner.run(trial)
    assert result.outcome is Outcome.OK, result
    assert note in " ".join(result.notes), result.notes
    assert measured(result)


@pytest.mark.parametrize(
    ("where", "changes"), [("climb", {"ladder": (LARGER,)}), ("beside", {"beside": PLAIN})], ids=["larger", "beside"]
)
def test_a_library_that_got_no_memory_and_says_something_else_is_seen_through(
    where: str, changes: dict[str, Any], runner: Runner, unruly: Unruly
) -> None:
    result = runner.run(unruly.trial(TimeTrial, "takes too much unseen", where, turn_seconds=0.1, **changes))
    assert result.outcome is Outcome.OK, result
    assert "ended as out of memory" in " ".join(result.notes), result.notes


def measured(result: TrialResult) -> bool:
    if isinstance(result, SizeResult):
        return result.sizing is not None and bool(result.sizing.points)
    assert isinstance(result, TimedResult), result
    return result.measurement is not None


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one device")
def test_one_rank_that_runs_out_ends_the_trial_for_all(runner: Runner, unruly: Unruly) -> None:
    result = runner.run(unruly.trial(TimeTrial, TOO_MUCH, "rank 1", policy=ON_TWO))
    assert result.outcome is Outcome.OUT_OF_MEMORY, result
    assert result.reason.startswith("rank 1: memory must stay within 1.00 GiB")
    assert my_children() == []
    goes_on(runner, unruly, ON_TWO)
