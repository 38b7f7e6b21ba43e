"""The runner against a worker without torch: every way to end, in tenths of a second."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from advisor.errors import OutputFolderError
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.trial.folder import StudyFolder
from advisor.trial.nodes import Nodes
from advisor.trial.outcome import Outcome
from advisor.trial.process.connection import Connection
from advisor.trial.process.interruption import interruptions_kept
from advisor.trial.process.runner import CutShortError, Runner
from advisor.trial.protocol import Answer, Finished
from advisor.trial.result import TimeResult
from advisor.trial.spec import ConfirmTrial
from tests.trial.specs import FAKE_WORKER, is_running, my_children, read_number, spec, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def runner(tmp_path: Path, told: list[str]) -> Iterator[Runner]:
    with Runner(tmp_path, worker_command=FAKE_WORKER, tell=told.append) as runner:
        yield runner
    assert my_children() == []


def starts(told: list[str]) -> int:
    return told.count("starting")


def test_one_worker_runs_many_trials(runner: Runner, told: list[str]) -> None:
    first, second = (runner.run(spec("well", repeat=repeat)) for repeat in range(2))
    assert first.outcome is second.outcome is Outcome.OK
    assert first.reason == second.reason  # the same process
    assert (first.warm, second.warm) == (False, True)
    assert min(first.wall_seconds, second.wall_seconds) > 0
    assert starts(told) == 1


def test_a_confirmation_has_a_process_of_its_own(runner: Runner, told: list[str]) -> None:
    before = runner.run(spec("well"))
    confirmed = runner.run(spec("well", kind=ConfirmTrial))
    after = runner.run(spec("well", repeat=1))
    assert len({before.reason, confirmed.reason, after.reason}) == 3
    assert not confirmed.warm
    assert starts(told) == 3


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("exits", Outcome.CRASHED, "the worker ended with exit status 0 without a result"),
        ("aborts", Outcome.CRASHED, "the worker was ended by SIGABRT without a result"),
        ("ends its group", Outcome.LOST, "the worker was ended by SIGTERM without a result"),
        ("writes half a result", Outcome.CRASHED, "without a result"),
        ("writes into our pipe", Outcome.CRASHED, "without a result"),
    ],
)
def test_a_worker_that_ends_without_a_result_has_crashed_or_was_lost(
    runner: Runner, told: list[str], name: str, outcome: Outcome, reason: str
) -> None:
    result = runner.run(spec(name))
    assert result.outcome is outcome
    assert reason in result.reason
    assert runner.run(spec("well")).outcome is Outcome.OK
    assert starts(told) == 2


def test_a_result_that_was_complete_counts_although_the_worker_crashed_after_it(
    runner: Runner, told: list[str]
) -> None:
    assert runner.run(spec("crashes after its result")).outcome is Outcome.OK
    runner.run(spec("well"))
    assert starts(told) == 2


def test_a_kill_without_evidence_of_memory_is_from_outside(runner: Runner) -> None:
    result = runner.run(spec("is killed"))
    assert result.outcome is Outcome.LOST
    assert "SIGKILL" in result.reason


def test_a_kill_with_the_kernels_evidence_is_host_memory(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.trial.host_memory.OutOfMemoryEvidence.found", lambda self: True)
    assert runner.run(spec("is killed")).outcome is Outcome.HOST_OUT_OF_MEMORY


@pytest.mark.parametrize("name", ["hangs", "hangs and ignores signals"])
def test_a_hang_ends_at_the_time_limit(runner: Runner, name: str) -> None:
    begin = time.monotonic()
    result = runner.run(spec(name, time_limit_seconds=0.5))
    assert result.outcome is Outcome.TIMEOUT
    assert "0.5 s" in result.reason
    assert time.monotonic() - begin < 50  # it would sleep for 600
    assert my_children() == []


@pytest.mark.parametrize("name", ["hangs", "hangs and ignores signals"])
def test_a_caller_that_waits_no_longer_gets_no_result_and_none_is_stored(runner: Runner, name: str) -> None:
    trial = spec(name, time_limit_seconds=600.0)
    runner.run(spec("well"))
    with pytest.raises(CutShortError):
        runner.run(trial, until=time.monotonic() + 0.5)
    assert my_children() == []
    assert runner.run(spec("well", repeat=1), until=time.monotonic() + 60).outcome is Outcome.OK
    assert runner.run(msgspec.structs.replace(trial, time_limit_seconds=0.5)).outcome is Outcome.TIMEOUT


def test_a_result_that_was_complete_before_the_caller_left_is_its_answer(runner: Runner) -> None:
    runner.run(spec("well"))
    trial = spec("stores its result and hangs")
    result = runner.run(trial, until=time.monotonic() + 2.0)
    assert result.outcome is Outcome.OK
    assert result.wall_seconds > 0
    assert my_children() == []


def test_a_caller_does_not_wait_for_a_worker_to_start_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.trial.process.connection._ENDING_SECONDS", 1.0)  # this program never ends by itself
    with (
        Runner(tmp_path, worker_command=(sys.executable, "-c", "import time; time.sleep(600)")) as runner,
        pytest.raises(CutShortError),
    ):
        runner.run(spec("well"), until=time.monotonic() + 0.5)
    assert my_children() == []


def test_nothing_that_the_model_started_outlives_its_trial(runner: Runner, tmp_path: Path) -> None:
    hanging = spec("leaves children", time_limit_seconds=4.0)
    assert runner.run(hanging).outcome is Outcome.TIMEOUT
    folder = StudyFolder(tmp_path).trial(hanging.key).path
    for name in ("worker", "child", "stranger"):
        assert not is_running(read_number(folder / name)), name


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to another process than init")
def test_a_daemon_that_the_model_started_ends_with_its_worker(tmp_path: Path) -> None:
    with Runner(tmp_path, worker_command=FAKE_WORKER) as runner:
        trial = spec("leaves a daemon")
        assert runner.run(trial).outcome is Outcome.OK
        daemon = read_number(StudyFolder(tmp_path).trial(trial.key).path / "child")
        assert is_running(daemon)
    assert not is_running(daemon)


def test_a_worker_that_leaks_is_replaced(runner: Runner, told: list[str]) -> None:
    assert runner.run(spec("leaks")).outcome is Outcome.OK
    assert not runner.run(spec("well")).warm
    assert starts(told) == 2


def test_a_worker_that_died_between_trials_costs_no_trial(runner: Runner, told: list[str]) -> None:
    first = runner.run(spec("well"))
    worker = int(first.reason.removeprefix("process "))
    os.kill(worker, signal.SIGKILL)
    assert wait_until(lambda: not is_running(worker))
    assert wait_until(lambda: my_children() == [])
    assert runner.run(spec("well", repeat=1)).outcome is Outcome.OK
    assert starts(told) == 2


def test_what_the_worker_does_is_told(runner: Runner, told: list[str]) -> None:
    runner.run(spec("reports"))
    assert told == ["starting", "half way"]


def test_garbage_on_standard_output_lands_in_the_log(runner: Runner) -> None:
    printing = spec("prints")
    assert runner.run(printing).outcome is Outcome.OK
    assert runner.tail_of_log(printing.key, lines=1) == "the last line"
    assert "garbage" in runner.tail_of_log(printing.key)
    assert runner.tail_of_log("never-run") == ""


def test_the_models_standard_input_is_empty(runner: Runner) -> None:
    assert runner.run(spec("reads its input")).reason == "''"


def test_the_environment_is_the_users_own(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    result = runner.run(spec("looks around"))
    assert result.reason.startswith("{'TOKENIZERS_PARALLELISM': 'false', 'PYTORCH_CUDA_ALLOC_CONF': None}")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux decides by this score")
def test_the_kernel_is_told_to_end_the_worker_first(runner: Runner) -> None:
    assert runner.run(spec("looks around")).reason.endswith(" 1000")


def test_a_worker_that_does_not_start_says_so_and_stores_nothing(tmp_path: Path) -> None:
    command = (*FAKE_WORKER, "--start=never")
    with Runner(tmp_path, worker_command=command, start_limit_seconds=0.5) as runner:
        result = runner.run(spec("well"))
    assert result.outcome is Outcome.TIMEOUT
    assert "did not start within 0.5 s" in result.reason
    assert "machines" not in result.reason
    with Runner(tmp_path, worker_command=FAKE_WORKER) as runner:
        assert runner.run(spec("well")).outcome is Outcome.OK


def test_ranks_on_several_machines_that_do_not_start_ask_for_the_others(tmp_path: Path) -> None:
    nodes = Nodes(count=3, endpoint="first:29400")
    command = (*FAKE_WORKER, "--start=never")
    with Runner(tmp_path, worker_command=command, start_limit_seconds=0.5, nodes=nodes) as runner:
        alone = runner.run(spec("well"))
        together = runner.run(spec("well", policy=Policy(micro_batch=4, methods=(use("ddp"),), gpu_count=3)))
    assert "machines" not in alone.reason, "one process needs no other machine"
    assert "did not start within 0.5 s; do all of the other 2 machines run the same command" in together.reason
    assert "do they reach first:29400?" in together.reason


def test_ranks_that_never_start_take_no_longer_than_their_trial_may(tmp_path: Path) -> None:
    command = (*FAKE_WORKER, "--start=never")
    together = spec("well", policy=Policy(micro_batch=4, methods=(use("ddp"),), gpu_count=2), time_limit_seconds=0.4)
    with Runner(tmp_path, worker_command=command, shortest_start_limit_seconds=0.1) as runner:
        assert "did not start within 0.4 s" in runner.run(together).reason
    with Runner(tmp_path, worker_command=command, shortest_start_limit_seconds=0.6) as runner:
        assert "did not start within 0.6 s" in runner.run(together).reason
    with Runner(tmp_path, worker_command=command, start_limit_seconds=0.2) as runner:
        assert "did not start within 0.2 s" in runner.run(together).reason
    assert my_children() == []


def test_a_worker_that_crashes_at_its_start_says_so_and_stores_nothing(tmp_path: Path) -> None:
    with Runner(tmp_path, worker_command=(*FAKE_WORKER, "--start=crash")) as runner:
        result = runner.run(spec("well"))
        assert "no such library" in runner.tail_of_log(spec("well").key)
    assert result.outcome is Outcome.LOST, "nothing of the trial has run"
    assert "exit status 7" in result.reason
    with Runner(tmp_path, worker_command=FAKE_WORKER) as runner:
        assert runner.run(spec("well")).outcome is Outcome.OK


# ---- stored results


def test_a_finished_trial_is_not_run_again(runner: Runner, told: list[str], tmp_path: Path) -> None:
    first = runner.run(spec("well"))
    again = runner.run(spec("well", measure_seconds=99.0))  # limits of time are no part of the trial
    assert again == first
    with Runner(tmp_path, worker_command=("no-such-program",)) as another:
        assert another.run(spec("well")) == first
    assert starts(told) == 1


def test_a_failed_trial_is_not_run_again_either(runner: Runner, told: list[str]) -> None:
    runner.run(spec("exits"))
    assert runner.run(spec("exits")).outcome is Outcome.CRASHED
    assert starts(told) == 1


@pytest.mark.parametrize("name", ["is killed", "hangs"])
def test_what_ended_by_chance_is_run_again_by_the_next_runner(
    runner: Runner, told: list[str], tmp_path: Path, name: str
) -> None:
    """Somebody ended its worker, or stopped it; this runner knows, and would only lose time over it again."""
    trial = spec(name, time_limit_seconds=0.3)
    first = runner.run(trial)
    assert first.outcome.is_by_chance
    assert runner.run(trial) == first
    assert starts(told) == 1
    later: list[str] = []
    with Runner(tmp_path, tell=later.append, worker_command=FAKE_WORKER) as another:
        assert another.run(trial).outcome is first.outcome
    assert starts(later) == 1


def test_what_a_workload_does_itself_is_remembered_by_every_runner(runner: Runner, tmp_path: Path) -> None:
    first = runner.run(spec("aborts"))
    with Runner(tmp_path, worker_command=("no-such-program",)) as another:
        assert another.run(spec("aborts")) == first


def test_a_result_that_cannot_be_read_is_none(runner: Runner, tmp_path: Path) -> None:
    first = runner.run(spec("well"))
    StudyFolder(tmp_path).trial(first.key).result.write_text('{"key": "time-')
    assert runner.run(spec("well")).outcome is Outcome.OK
    assert runner.run(spec("well", repeat=1)).warm


def test_an_interrupted_trial_runs_again(runner: Runner, tmp_path: Path) -> None:
    first = runner.run(spec("well"))
    interrupted = msgspec.structs.replace(first, outcome=Outcome.INTERRUPTED)
    StudyFolder(tmp_path).trial(first.key).write_result(interrupted)
    assert runner.run(spec("well")).outcome is Outcome.OK


def test_a_timeout_stands_until_twice_the_time_is_offered(runner: Runner, told: list[str]) -> None:
    for limit, expected_starts in ((0.3, 1), (0.5, 1), (0.6, 2), (0.6, 2)):
        assert runner.run(spec("hangs", time_limit_seconds=limit)).outcome is Outcome.TIMEOUT
        assert starts(told) == expected_starts


# ---- the parent


def test_an_interrupt_leaves_no_process_and_no_result(tmp_path: Path) -> None:
    hanging = spec("leaves children")
    folder = StudyFolder(tmp_path).trial(hanging.key)

    def interrupt() -> None:
        read_number(folder.path / "worker")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with (
        interruptions_kept(),
        Runner(tmp_path, worker_command=FAKE_WORKER) as runner,
        pytest.raises(KeyboardInterrupt),
    ):
        runner.run(hanging)
    thread.join()
    assert my_children() == []
    assert not folder.result.exists()
    for name in ("worker", "child", "stranger"):
        assert not is_running(read_number(folder.path / name)), name


def test_a_result_that_was_complete_is_not_lost_to_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between the worker's writing and the parent's reading."""
    trial = spec("well")
    folder = StudyFolder(tmp_path).trial(trial.key)
    receive = Connection.receive

    def interrupted(self: Connection, deadline: float) -> Answer:
        answer = receive(self, deadline)
        if isinstance(answer, Finished):
            raise KeyboardInterrupt
        return answer

    with Runner(tmp_path, worker_command=FAKE_WORKER) as runner:
        monkeypatch.setattr(Connection, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run(trial)
        kept = folder.read_result(trial)
        assert kept is not None
        assert kept.outcome is Outcome.OK
        assert kept.wall_seconds > 0
        assert runner.run(trial) == kept
    assert my_children() == []


def test_the_result_of_another_request_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = spec("well")
    folder = StudyFolder(tmp_path).trial(trial.key)

    def interrupted(self: Connection, deadline: float) -> Answer:
        folder.write_result(TimeResult(key="of another", outcome=Outcome.OK))
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "receive", interrupted)
    with Runner(tmp_path, worker_command=FAKE_WORKER) as runner, pytest.raises(KeyboardInterrupt):
        runner.run(trial)
    assert not folder.result.exists()


def test_a_full_disk_is_the_folders_fault_and_no_trial_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = spec("finds the disk full")
    with Runner(tmp_path, worker_command=FAKE_WORKER) as runner:
        with pytest.raises(OutputFolderError, match="No space left"):
            runner.run(trial)
        assert my_children() == []
        assert not StudyFolder(tmp_path).trial(trial.key).result.exists()

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OutputFolderError, match=r"spec\.json cannot be written: No space left"):
            runner.run(spec("well"))


def test_a_folder_that_is_in_the_way_is_explained(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("not a folder")
    with (
        Runner(tmp_path, worker_command=FAKE_WORKER) as runner,
        pytest.raises(OutputFolderError, match="Not a directory"),
    ):
        runner.run(spec("well"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    """Not even when another child of the parent holds the pipes open, as a data loader's workers may."""
    hanging = spec("leaves children")
    folder = StudyFolder(tmp_path).trial(hanging.key).path
    code = f"""
import os, sys, time
from pathlib import Path
from advisor.trial.process.runner import Runner
from tests.trial.specs import FAKE_WORKER, spec
class Forking(Runner):
    def _wait(self, *arguments):
        if os.fork() == 0:
            Path({str(tmp_path)!r}, "holder").write_text(str(os.getpid()))
            time.sleep(600)
            os._exit(0)
        return super()._wait(*arguments)
Forking(Path({str(tmp_path)!r}), worker_command=FAKE_WORKER).run(spec("leaves children"))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent.parent.parent)
    processes = [read_number(folder / name) for name in ("worker", "child", "stranger")]
    holder = read_number(tmp_path / "holder")
    try:
        assert all(is_running(process) for process in processes)
        parent.send_signal(how)
        parent.wait()
        assert wait_until(lambda: not any(is_running(process) for process in processes), seconds=30.0)
    finally:
        os.kill(holder, signal.SIGKILL)
    assert not StudyFolder(tmp_path).trial(hanging.key).result.exists()


def test_the_parent_loads_no_torch(tmp_path: Path) -> None:
    code = "import sys, advisor.trial.process.runner; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent.parent).returncode == 0
