"""The process that loads torch once and forks every worker: the same for the parent as one that is executed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from advisor.trial.forkable import why_not_to_fork
from advisor.trial.outcome import Outcome
from advisor.trial.process import fork_client
from advisor.trial.process.connection import WORKER_COMMAND, Connection, child_environment
from advisor.trial.process.fork_client import ForkServer, UnforkableError, borrow, give_back, servers_are_kept
from advisor.trial.process.runner import Runner
from advisor.trial.process.starting import WorkerStarter
from advisor.trial.protocol import Exited, Ready
from tests.trial.specs import FAKE_WORKER, is_running, spec, wait_until

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def starter(workers_as_usual: None) -> Iterator[WorkerStarter]:
    starter = WorkerStarter(WORKER_COMMAND)
    yield starter
    starter.close()


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has loaded nothing, which takes no time."""
    monkeypatch.setattr(fork_client, "_COMMAND", (sys.executable, "-c", _WITHOUT_LIBRARIES))
    monkeypatch.setenv("MOMADVISE_TEST", "without libraries")  # nobody else shall be served by it
    monkeypatch.setattr(fork_client, "_KEEPERS", 0)


_WITHOUT_LIBRARIES = "from advisor.trial import fork_server; fork_server._load = lambda: None; fork_server.main()"


def guardian_of(connection: Connection) -> psutil.Process:
    number = connection._process._number  # type: ignore[attr-defined]  # no other way to tell which one it is
    return psutil.Process(number)


def connect(starter: WorkerStarter, folder: Path, *arguments: str) -> Connection:
    connection = Connection(starter.starting(arguments, 120.0), folder / "log.txt")
    assert connection.receive(time.monotonic() + 60) == Ready()
    return connection


@pytest.mark.slow
class TestAForkedWorker:
    def test_leads_a_session_of_its_own_and_ends_with_its_connection(
        self, starter: WorkerStarter, tmp_path: Path
    ) -> None:
        connection = connect(starter, tmp_path)
        guardian = guardian_of(connection)
        (worker,) = guardian.children()
        assert os.getpgid(guardian.pid) == os.getsid(guardian.pid) == guardian.pid
        assert guardian.ppid() != os.getpid()
        connection.end()
        assert not is_running(guardian.pid)
        assert not is_running(worker.pid)

    def test_that_is_killed_tells_how_it_ended(self, starter: WorkerStarter, tmp_path: Path) -> None:
        connection = connect(starter, tmp_path)
        (worker,) = guardian_of(connection).children()
        worker.kill()
        assert connection.receive(time.monotonic() + 30) == Exited(status=-signal.SIGKILL)
        connection.end()

    def test_whose_guardian_is_killed_ends_with_it(self, starter: WorkerStarter, tmp_path: Path) -> None:
        connection = connect(starter, tmp_path)
        guardian = guardian_of(connection)
        (worker,) = guardian.children()
        guardian.kill()
        assert connection.receive(time.monotonic() + 30) == Exited(status=-signal.SIGKILL)
        assert wait_until(lambda: not is_running(worker.pid))
        connection.end()

    def test_has_the_environment_and_the_folder_of_its_parent(
        self, starter: WorkerStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = connect(starter, tmp_path)
        monkeypatch.setenv("COLUMNS", "71")
        monkeypatch.chdir(tmp_path)
        second = connect(starter, tmp_path)
        (one,), (other,) = guardian_of(first).children(), guardian_of(second).children()
        assert guardian_of(first).ppid() == guardian_of(second).ppid(), "one process serves both"
        assert other.cwd() == str(tmp_path) != one.cwd()
        first.end()
        second.end()

    def test_is_another_process_each_time(self, tmp_path: Path) -> None:
        with Runner(tmp_path) as runner:
            results = [runner.run(spec(repeat=number)) for number in (1, 2)]
        assert [(result.outcome, result.warm) for result in results] == [(Outcome.OK, False), (Outcome.OK, True)]


@pytest.mark.usefixtures("without_libraries")
class TestTheServer:
    def test_ends_with_the_last_who_borrowed_it(self) -> None:
        environment = child_environment(os.environ)
        one, other = borrow(environment), borrow(environment)
        assert one is other
        process = one._process
        assert process is not None
        give_back(one)
        assert process.poll() is None
        give_back(other)
        assert process.poll() == 0

    def test_stays_for_who_runs_many_studies(self) -> None:
        environment = child_environment(os.environ)
        with servers_are_kept():
            one = borrow(environment)
            give_back(one)
            assert borrow(environment) is one
            give_back(one)
        assert one._process is None

    def test_is_another_where_a_variable_differs_that_a_library_may_read(self) -> None:
        environment = child_environment(os.environ)
        one, other = (borrow({**environment, "OMP_NUM_THREADS": threads}) for threads in ("1", "2"))
        assert one is not other
        give_back(one)
        give_back(other)

    def test_that_is_killed_takes_its_workers_along_and_the_next_is_executed(self, tmp_path: Path) -> None:
        starter = WorkerStarter(WORKER_COMMAND)
        connection = Connection(starter.starting((), 120.0), tmp_path / "log.txt")
        guardian = guardian_of(connection)
        assert wait_until(lambda: bool(guardian.children()))  # it guards
        assert connection.receive(time.monotonic() + 60) == Ready()
        psutil.Process(guardian.ppid()).kill()
        assert connection.receive(time.monotonic() + 30) == Exited(status=-signal.SIGKILL)
        assert wait_until(lambda: not is_running(guardian.pid))
        connection.end()
        another = Connection(starter.starting((), 120.0), tmp_path / "log.txt")
        assert starter._server is None
        another.end()

    def test_goes_when_its_parent_is_killed(self) -> None:
        code = (
            "import os, time; from advisor.trial.process import fork_client; "
            f"fork_client._COMMAND = {fork_client._COMMAND!r}; "
            "print(fork_client.borrow(dict(os.environ))._process.pid, flush=True); time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            server = int(parent.stdout.readline())
            assert is_running(server)
            parent.kill()
        assert wait_until(lambda: not is_running(server), seconds=60.0)


class TestWhereNothingCanBeForked:
    def test_an_open_gpu_is_a_reason(self, tmp_path: Path) -> None:
        (tmp_path / "0").symlink_to("/dev/null")
        assert why_not_to_fork(tmp_path) == ""
        (tmp_path / "7").symlink_to("/dev/nvidia0")
        assert why_not_to_fork(tmp_path) == (
            "loading the libraries opened /dev/nvidia0, which a forked process cannot use"
        )

    @pytest.mark.slow
    def test_the_worker_is_executed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise UnforkableError("for a test")

        monkeypatch.setattr(ForkServer, "fork", refuse)
        with Runner(tmp_path) as runner:
            assert runner.run(spec()).outcome is Outcome.OK
            assert runner._starter._server is None

    def test_an_environment_that_is_too_large_is_a_reason(self) -> None:
        server = ForkServer({})
        with pytest.raises(UnforkableError, match="environment is too large"):
            server.fork((), {}, 1, {"LARGE": "x" * 2**18}, 1.0)
        server.close()

    def test_a_server_that_ends_while_it_loads_is_a_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fork_client, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
        server = ForkServer({})
        with pytest.raises(UnforkableError, match="it has ended"):
            server.fork((), {}, 1, {}, 30.0)

    def test_a_server_that_loads_too_long_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fork_client, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
        monkeypatch.setattr(fork_client, "_END_SECONDS", 0.1)
        server = ForkServer({})
        process = server._process
        assert process is not None
        with pytest.raises(TimeoutError):
            server.fork((), {}, 1, {}, 0.2)
        assert process.poll() is not None

    def test_another_program_is_executed(self, tmp_path: Path) -> None:
        starter = WorkerStarter(FAKE_WORKER)
        connection = Connection(starter.starting((), 120.0), tmp_path / "log.txt")
        assert connection.receive(time.monotonic() + 30) == Ready()
        assert starter._server is None
        connection.end()
