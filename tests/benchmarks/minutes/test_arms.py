"""Arms as processes: they become ready, make steps and end; one that cannot train gives a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.minutes import busy
from benchmarks.minutes.arms import Arm, ArmLostError
from benchmarks.minutes.busy import one_core_busy
from benchmarks.minutes.protocol import ArmRequest
from benchmarks.minutes.settings import UNTOUCHED, Setting

SECONDS = 120.0
BY_HAND = Setting(name="by hand")

MODEL = """
import os, sys, torch

print("what a user's file prints is in nobody's way")

def build_model():
    return torch.nn.Linear(4, 1)

def make_batch(batch_size):
    return (torch.ones(batch_size, 4),)

def compute_loss(model, batch):
    {first}
    return model(*batch).mean()
"""


def arm(
    folder: Path,
    setting: Setting = BY_HAND,
    *,
    first: str = "pass",
    memory_bytes: int | None = None,
    ready_seconds: float = SECONDS,
) -> Arm:
    file = folder / "users_model.py"
    file.write_text(MODEL.format(first=first))
    request = ArmRequest(workload=str(file), setting=setting, batch=8, memory_bytes=memory_bytes)
    return Arm(request, environment=os.environ, ready_seconds=ready_seconds, turn_seconds=SECONDS)


@pytest.mark.slow
def test_an_arm_makes_steps_on_request_and_ends_with_its_block(tmp_path: Path) -> None:
    with arm(tmp_path) as ready:
        assert ready.batch == 8
        assert ready.step_seconds > 0
        assert ready.turn(3) > 0
        (process,) = [
            one
            for one in psutil.Process().children()
            if one.is_running() and "benchmarks.minutes.arm" in str(one.cmdline())
        ]
    assert not process.is_running()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("raise ValueError('no such column')", "ValueError: no such column"),
        ("sys.exit('enough')", "exit status 1: enough"),
        ("os.kill(os.getpid(), 9)", "it was killed: the machine was out of memory, most likely"),
    ],
)
def test_an_arm_that_cannot_train_says_why(tmp_path: Path, first: str, reason: str) -> None:
    with pytest.raises(ArmLostError, match=f"^{reason}$"):
        arm(tmp_path, first=first)


@pytest.mark.slow
def test_a_failure_of_the_unmodified_file_is_attributed_to_it(tmp_path: Path) -> None:
    with pytest.raises(ArmLostError, match=r"^untouched: exit status 1: enough$"):
        arm(tmp_path, UNTOUCHED, first="sys.exit('enough')")


@pytest.mark.slow
def test_an_arm_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ArmLostError, match=r"^it took longer to get ready than 0\.1 s$"):
        arm(tmp_path, ready_seconds=0.1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone limits a process's data")
def test_an_arm_runs_out_of_memory_before_the_machine_does(tmp_path: Path) -> None:
    with pytest.raises(ArmLostError, match="can't allocate memory"):
        arm(tmp_path, first="torch.zeros(2**29)", memory_bytes=2**30)


def test_a_core_is_busy_only_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def remembered(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(busy.subprocess, "Popen", remembered)

    def interrupted() -> None:
        with one_core_busy():
            assert started[0].poll() is None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].poll() is not None, "in every case"
    with one_core_busy(False):
        assert len(started) == 1
