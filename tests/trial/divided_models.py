"""Trials of a small model that ranks divide among each other, and what its emitted wrapper must do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from advisor.hardware.mesh import DATA_ONLY, Mesh
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import FidelityTrial
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.distributed.models import movement_error
from tests.trial.specs import spec

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "session" / "workloads" / "tiny.py"


def trial(
    settings: tuple[MethodSetting, ...] = (),
    *,
    mesh: Mesh = DATA_ONLY,
    count: int = 1,
    micro_batch: int = 4,
    accumulation_steps: int = 1,
    path: Path = TINY,
    **changes: Any,
) -> Any:
    """A trial of a model file, four samples a step if nothing else is said; ``changes`` are fields of it."""
    policy = Policy(
        methods=settings, micro_batch=micro_batch, accumulation_steps=accumulation_steps, gpu_count=count, mesh=mesh
    )
    source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name=path.stem, fingerprint=path.read_text())
    return spec(**{"workload": source, "policy": policy, **changes})


def ran(runner: Runner, wanted: Any) -> Any:
    """The result of a trial that must end well."""
    result = runner.run(wanted)
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
    return result


def trains_as_plain_training_does(runner: Runner, own: Any, single: Policy) -> None:
    """Its first gradient is that of one process, and so are the losses of eight steps."""
    wanted = trial(policy=single, kind=FidelityTrial, fidelity_steps=8)
    gradient = str(runner.gradient_file(wanted.key))
    exact = ran(runner, msgspec.structs.replace(wanted, write_gradient_to=gradient))
    found = ran(runner, msgspec.structs.replace(own, reference_gradient=gradient)).fidelity
    assert found.gradient is not None, found.gradient_reason
    assert found.gradient.error < 1e-5
    assert found.losses == pytest.approx(exact.fidelity.losses, rel=1e-3)


def wrapper_trains_as_a_plain_loop(policy: Policy, folder: Path) -> None:
    """Under torchrun, two steps of four samples leave a state with plain names, and plain training's values."""
    write_wrapper(policy, folder / "wrapper.py", headline="A test.", details="")
    (folder / "train.py").write_text(_TRAINS.format(tiny=str(TINY)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(policy.gpu_count), "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    state = torch.load(folder / "state.pt")
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
