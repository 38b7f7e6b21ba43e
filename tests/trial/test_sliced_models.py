"""Trials of models that ranks slice: predicted, measured, guarded, refused, and applied by a wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.hardware.mesh import Mesh
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import FidelityTrial, PredictTrial, ProbeTrial, SizeTrial
from tests.trial.divided_models import TINY, ran, trains_as_plain_training_does, trial, wrapper_trains_as_a_plain_loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SLICED = use("tensor_parallel", sequence=True, vocabulary=False)
DDP = use("ddp", bucket_views=True, static_graph=False)


def sliced(settings: tuple[MethodSetting, ...] = (SLICED,), *, count: int = 2, **changes: Any) -> Any:
    return trial(settings, mesh=Mesh(tensor=2), count=count, **changes)


def test_a_sliced_model_is_sized_timed_by_the_plan_that_was_found_and_applied_by_its_wrapper(
    runner: Runner, tmp_path: Path
) -> None:
    sized = ran(runner, sliced(kind=SizeTrial, largest_batch=8))
    alone = ran(runner, trial(kind=SizeTrial, largest_batch=8))
    for point, whole in zip(sized.sizing.points, alone.sizing.points, strict=True):
        assert point.memory.peak_bytes < 0.7 * whole.memory.peak_bytes
    settled = sized.sizing.settled
    assert set(settled) == {"tensor_parallel"}
    policy = msgspec.structs.replace(sliced().policy, settled=settled)
    predicted = ran(runner, sliced(policy=policy, kind=PredictTrial)).prediction
    for point in sized.sizing.points:
        # Threads of gloo hold what they have sent, and their copies of it, until they run again (decision 0017).
        assert 0.6 < predicted.peak(point.micro_batch) / point.memory.peak_bytes < 1.01
    timed = ran(runner, sliced(policy=policy))
    assert timed.measurement.samples_per_second == pytest.approx(4 / timed.measurement.step_seconds)
    wrapper_trains_as_a_plain_loop(policy, tmp_path)


@pytest.mark.parametrize(("settings", "count"), [((SLICED,), 2), ((DDP, SLICED), 4)], ids=["tensor", "data x tensor"])
def test_the_first_gradient_and_the_losses_are_those_of_plain_training(
    runner: Runner, settings: tuple[MethodSetting, ...], count: int
) -> None:
    own = sliced(settings, count=count, kind=FidelityTrial, fidelity_steps=8)
    trains_as_plain_training_does(runner, own, Policy(micro_batch=4 * count // 2))


def test_the_probe_says_for_each_number_of_devices_what_they_can_slice(runner: Runner) -> None:
    facts = runner.run(trial(kind=ProbeTrial, tensor_degrees=(2, 3, 4))).facts
    assert set(facts.tensor_degrees) == {2, 4}
    assert 0.9 < facts.tensor_degrees[2] < 1.0
    assert "256 inputs, which 3 ranks cannot share evenly" in facts.tensor_refusals[3]
    assert "embedding of tokens" in facts.vocabulary_refusals[2]
    assert facts.sequence_refusals == {}


def test_the_probe_finds_out_what_can_be_sliced_also_where_no_step_fits(runner: Runner) -> None:
    probed = runner.run(trial(kind=ProbeTrial, tensor_degrees=(2,), memory_limit_bytes=2 * 2**20))
    assert probed.outcome is Outcome.OK, (probed, runner.tail_of_log(probed.key))
    assert probed.facts.first_loss is None
    assert set(probed.facts.tensor_degrees) == {2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("4 * WIDTH", "255"), "which 2 ranks cannot share evenly"),
        (("batch_size, 32", "batch_size, 31"), "31 tokens and 2 ranks"),
    ],
)
def test_what_ranks_cannot_share_is_refused_and_nobody_waits(
    runner: Runner, tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    path = tmp_path / "workload.py"
    path.write_text(TINY.read_text().replace(*change))
    result = runner.run(sliced(path=path))
    assert result.outcome is Outcome.REFUSED, (result, runner.tail_of_log(result.key))
    assert reason in result.reason
