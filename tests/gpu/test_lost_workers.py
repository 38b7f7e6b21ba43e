"""Workers that go away with the GPU open: a named outcome, the device's memory free again, a next trial that works."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pynvml
import pytest
import torch

from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import SizeTrial, TimeTrial
from tests.gpu.unruly import Unruly
from tests.trial.specs import is_running, my_children, read_number, wait_until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("whatever_is_computed"),
]

MIB = 2**20


@pytest.fixture(scope="module")
def runner(cuda: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


@pytest.fixture
def unruly(tmp_path: Path) -> Unruly:
    return Unruly(tmp_path)


@pytest.fixture
def nobody_holds_memory(cuda: torch.device, runner: Runner) -> Iterator[None]:
    """Nothing of the device is held afterwards that was not before, by a process of this one's or by one that is gone.

    What others do beside it, such as tests in another process, counts for nothing.
    """
    runner.close()
    before = held(cuda)
    yield
    runner.close()
    assert wait_until(lambda: held(cuda) < before + 64 * MIB), f"{held(cuda) - before:,} bytes are still held"


def held(cuda: torch.device) -> int:
    pynvml.nvmlInit()
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(cuda).uuid}".encode())
        uses = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    finally:
        pynvml.nvmlShutdown()
    mine = {child.pid for child in psutil.Process().children(recursive=True)}
    return sum(use.usedGpuMemory or 0 for use in uses if use.pid in mine or not psutil.pid_exists(use.pid))


@pytest.mark.usefixtures("nobody_holds_memory")
@pytest.mark.parametrize(
    ("how", "outcome", "reason"),
    [
        ("is killed", Outcome.LOST, "was ended by SIGKILL"),
        ("aborts", Outcome.CRASHED, "was ended by SIGABRT"),
        ("breaks the context", Outcome.FAILED, "CUDA error"),
    ],
)
def test_a_worker_that_is_lost_is_replaced(
    how: str, outcome: Outcome, reason: str, runner: Runner, unruly: Unruly
) -> None:
    lost = unruly.trial(TimeTrial, how)
    result = runner.run(lost)
    assert result.outcome is outcome, (result, runner.tail_of_log(lost.key))
    assert reason in result.reason
    after = runner.run(unruly.trial(SizeTrial, largest_batch=4))
    assert after.outcome is Outcome.OK, after
    assert not after.warm


@pytest.mark.usefixtures("nobody_holds_memory")
def test_what_breaks_the_device_beside_a_trial_does_not_reach_it(runner: Runner, unruly: Unruly) -> None:
    trial = unruly.trial(TimeTrial, "breaks the context", "beside", turn_seconds=0.1)
    result = runner.run(unruly.beside_plain(trial))
    assert result.outcome is Outcome.OK, result
    assert result.measurement is not None
    assert result.speedup is None
    assert any("not compared in turn" in note for note in result.notes), result.notes


@pytest.mark.usefixtures("nobody_holds_memory")
def test_the_fork_server_may_die_in_a_trial_and_between_two(runner: Runner, unruly: Unruly) -> None:
    hanging = unruly.trial(TimeTrial, "hangs")
    killer = threading.Thread(target=lambda: (read_number(unruly.folder / "process"), kill_servers()))
    killer.start()
    result = runner.run(hanging)
    killer.join()
    assert result.outcome is Outcome.LOST, result
    assert not is_running(read_number(unruly.folder / "process"))
    kill_servers()
    after = runner.run(unruly.trial(SizeTrial, largest_batch=4))
    assert after.outcome is Outcome.OK, after


def kill_servers() -> None:
    for child in psutil.Process(os.getpid()).children():
        if "advisor.trial.fork_server" in child.cmdline():
            child.send_signal(signal.SIGKILL)
