"""Trials of models that ranks slice among each other: measured, guarded, refused, and applied by an emitted wrapper."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from advisor.hardware.mesh import Mesh
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import FidelityTrial, PredictTrial, ProbeTrial, SizeTrial
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.distributed.models import movement_error
from tests.trial.specs import my_children, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "session" / "workloads" / "tiny.py"
SLICED = use("tensor_parallel", sequence=True, vocabulary=False)
DDP = use("ddp", bucket_views=True, static_graph=False)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


def trial(settings: tuple[MethodSetting, ...] = (SLICED,), *, path: Path = TINY, count: int = 2, **changes: Any) -> Any:
    tensor = 2 if SLICED in settings else 1
    policy = Policy(methods=settings, micro_batch=4, gpu_count=count, mesh=Mesh(tensor=tensor))
    source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name=path.stem, fingerprint=path.read_text())
    return spec(**{"workload": source, "policy": policy, **changes})


def test_a_sliced_model_is_sized_timed_by_the_plan_that_was_found_and_applied_by_its_wrapper(
    runner: Runner, tmp_path: Path
) -> None:
    sized = runner.run(trial(kind=SizeTrial, largest_batch=8))
    assert sized.outcome is Outcome.OK, (sized, runner.tail_of_log(sized.key))
    alone = runner.run(trial((), count=1, kind=SizeTrial, largest_batch=8))
    for point, whole in zip(sized.sizing.points, alone.sizing.points, strict=True):
        assert point.memory.peak_bytes < 0.7 * whole.memory.peak_bytes
    settled = sized.sizing.settled
    assert set(settled) == {"tensor_parallel"}
    policy = msgspec.structs.replace(trial().policy, settled=settled)
    predicted = runner.run(trial(policy=policy, kind=PredictTrial))
    assert predicted.outcome is Outcome.OK, (predicted, runner.tail_of_log(predicted.key))
    # What gloo has sent, its threads hold a moment longer than a trace does.
    assert predicted.prediction.peak(8) == pytest.approx(sized.sizing.points[1].memory.peak_bytes, rel=0.3)
    timed = runner.run(trial(policy=policy))
    assert timed.outcome is Outcome.OK, (timed, runner.tail_of_log(timed.key))
    assert timed.measurement.samples_per_second == pytest.approx(4 / timed.measurement.step_seconds)

    write_wrapper(policy, tmp_path / "wrapper.py", headline="A test.", details="")
    (tmp_path / "train.py").write_text(_TRAINS.format(tiny=str(TINY)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    state = torch.load(tmp_path / "state.pt")
    namespace: dict[str, Any] = {}
    exec(TINY.read_text(), namespace)
    torch.manual_seed(0)
    plain = namespace["build_model"]()
    optimizer = torch.optim.AdamW(plain.parameters())
    for seed in range(2):
        torch.manual_seed(seed)
        plain(**namespace["make_batch"](4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert list(state) == list(plain.state_dict())
    torch.manual_seed(0)
    assert movement_error(state, plain.state_dict(), namespace["build_model"]()) < 1e-3


_TRAINS = """
import torch
from wrapper import prepare

torch.distributed.init_process_group("gloo")
namespace = {{}}
exec(open({tiny!r}).read(), namespace)
torch.manual_seed(0)
training = prepare(namespace["build_model"](), device="cpu")
for seed in range(2):
    torch.manual_seed(seed)
    training.step(namespace["make_batch"](4))
state = training.state_dict()["model"]
if torch.distributed.get_rank() == 0:
    torch.save(state, "state.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("settings", "count"), [((SLICED,), 2), ((DDP, SLICED), 4)], ids=["tensor", "data x tensor"])
def test_the_first_gradient_and_the_losses_are_those_of_plain_training(
    runner: Runner, settings: tuple[MethodSetting, ...], count: int
) -> None:
    single = trial((), count=1, kind=FidelityTrial, fidelity_steps=8)
    single = msgspec.structs.replace(single, policy=Policy(micro_batch=4 * count // 2))
    gradient = str(runner.gradient_file(single.key))
    exact = runner.run(msgspec.structs.replace(single, write_gradient_to=gradient))
    assert exact.outcome is Outcome.OK, (exact, runner.tail_of_log(exact.key))
    own = runner.run(trial(settings, count=count, kind=FidelityTrial, fidelity_steps=8, reference_gradient=gradient))
    assert own.outcome is Outcome.OK, (own, runner.tail_of_log(own.key))
    assert own.fidelity.gradient is not None, own.fidelity.gradient_reason
    assert own.fidelity.gradient.error < 1e-5
    assert own.fidelity.losses == pytest.approx(exact.fidelity.losses, rel=1e-3)


def test_the_probe_says_for_each_number_of_devices_what_they_can_slice(runner: Runner) -> None:
    facts = runner.run(trial((), count=1, kind=ProbeTrial, tensor_degrees=(2, 3, 4))).facts
    assert set(facts.tensor_degrees) == {2, 4}
    assert 0.9 < facts.tensor_degrees[2] < 1.0
    assert "256 inputs, which 3 ranks cannot share evenly" in facts.tensor_refusals[3]
    assert "embedding of tokens" in facts.vocabulary_refusals[2]
    assert facts.sequence_refusals == {}


def test_the_probe_finds_out_what_can_be_sliced_also_where_no_step_fits(runner: Runner) -> None:
    probed = runner.run(trial((), count=1, kind=ProbeTrial, tensor_degrees=(2,), memory_limit_bytes=2 * 2**20))
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
    result = runner.run(trial(path=path))
    assert result.outcome is Outcome.REFUSED, (result, runner.tail_of_log(result.key))
    assert reason in result.reason
