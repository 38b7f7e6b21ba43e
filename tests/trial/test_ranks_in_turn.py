"""A wrapper on several ranks takes turns with a baseline that trains on all of their devices, or on the first one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ConfirmResult
from advisor.trial.spec import ConfirmTrial
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.trial.specs import my_children, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DDP = use("ddp", bucket_views=True, static_graph=False)
WRAPPER = Policy(methods=(DDP,), micro_batch=8, gpu_count=2)
GROUP = Policy(methods=(DDP,), micro_batch=6, gpu_count=2)
ALONE = Policy(micro_batch=6)

WORKLOAD = """
import os
from pathlib import Path

import torch


def build_model(width=64):
    told = [os.environ.get(name, "") for name in ("RANK", "OMP_NUM_THREADS")]
    with Path({log!r}).open("a") as file:
        file.write(",".join([*told, str(torch.get_num_threads()), str(width)]) + "\\n")
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Linear(width, 1))


def make_batch(batch_size):
    if {faulty!r} and batch_size in (6, 12) and os.environ.get("RANK", "0") == {faulty!r}:
        raise ValueError("not these samples")
    return torch.randn(batch_size, 16)


def compute_loss(model, batch):
    return model(batch).square().mean()
"""


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """At its end no process is left, partners included."""
    with Runner(tmp_path / "study") as runner:
        yield runner
    assert my_children() == []


class Confirming:
    """Confirmations of one wrapper, and what its processes built."""

    def __init__(self, folder: Path, *, faulty: str = "") -> None:
        self._log = folder / "log"
        self._wrapper = folder / "wrapper.py"
        write_wrapper(WRAPPER, self._wrapper, headline="For a test.", details="Nothing measured.")
        text = WORKLOAD.format(log=str(self._log), faulty=faulty)
        path = folder / "workload.py"
        path.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="own", fingerprint=digest)

    def spec(self, beside: Policy, **changes: Any) -> Any:
        trial = spec(
            kind=ConfirmTrial, wrapper_path=str(self._wrapper), beside=beside, measure_seconds=1.0, turn_seconds=1.0
        )
        return msgspec.structs.replace(trial, workload=self._source, policy=WRAPPER, **changes)

    def built(self) -> list[tuple[str, ...]]:
        """RANK, OMP_NUM_THREADS, threads and width of every model that was built."""
        return sorted(tuple(line.split(",")) for line in self._log.read_text().splitlines())


def ran(runner: Runner, trial: Any) -> ConfirmResult:
    result: ConfirmResult = runner.run(trial)
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(trial.key))
    assert result.measurement is not None
    assert result.measurement.samples_per_second == pytest.approx(16 / result.measurement.step_seconds)
    return result


def test_a_group_takes_turns_with_another_group_on_the_same_devices(runner: Runner, tmp_path: Path) -> None:
    confirming = Confirming(tmp_path)
    result = ran(runner, confirming.spec(GROUP))
    assert result.speedup is not None, result.notes
    assert result.speedup.rounds >= 2
    (pace,) = result.paces
    assert pace.policy == GROUP
    assert pace.samples_per_second > 0
    assert [one[0] for one in confirming.built()] == ["0", "0", "1", "1"], "each rank, and its partner"


def test_a_group_takes_turns_with_one_process_that_is_no_rank(runner: Runner, tmp_path: Path) -> None:
    """Its steps would otherwise be those of one thread, and its code would find a rank's environment."""
    confirming = Confirming(tmp_path)
    result = ran(runner, confirming.spec(ALONE, beside_size={"width": 128}))
    assert result.speedup is not None, result.notes
    (pace,) = result.paces
    assert pace.policy == ALONE
    alone, *ranks = confirming.built()
    assert alone[0] == ""
    assert alone[3] == "128", "at a size of its own"
    assert [(rank, told, width) for rank, told, _, width in ranks] == [("0", "1", "64"), ("1", "1", "64")]
    assert int(alone[2]) == torch.get_num_threads()


@pytest.mark.parametrize(("beside", "faulty"), [(GROUP, "1"), (ALONE, "0")], ids=["of a group", "alone"])
def test_where_the_other_cannot_train_the_wrapper_is_measured_by_itself_and_says_why(
    runner: Runner, tmp_path: Path, beside: Policy, faulty: str
) -> None:
    """One rank of the other group fails while the others wait for it in a sum: nobody may wait for ever."""
    result = ran(runner, Confirming(tmp_path, faulty=faulty).spec(beside))
    assert result.speedup is None
    assert result.paces == ()
    assert any("not these samples" in note for note in result.notes), result.notes
