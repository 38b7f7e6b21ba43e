"""What the system refuses, or somebody does to a process, is named for what it is, and the same command goes on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import signal
import sqlite3
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy

from advisor.cli import main
from advisor.errors import OutputFolderError, SurroundingsError
from advisor.search.study.storage import quietly
from advisor.session.tuning import Tuning
from advisor.surroundings import refused
from advisor.trial.outcome import Outcome
from advisor.trial.process import fork_client, starting
from advisor.trial.process.fork_client import ForkServer, UnforkableError
from advisor.trial.process.runner import Runner
from advisor.trial.process.starting import WorkerStarter
from advisor.trial.result import TrialResult
from advisor.trial.spec import LookTrial, TrialSpec
from tests.session.command import COMMAND, run_here
from tests.session.processes import descendants, wait_until_gone
from tests.trial.specs import spec

TINY = Path(__file__).parents[1] / "session" / "workloads" / "tiny.py"
QUICK = ("--search-space", "smoke", "--trials", "1", "--time-limit", "60s", "--memory-limit", "6MiB", "--device", "cpu")
HOLDS_ON = ("/bin/sh", "-c", "exec sleep 600")
"""In place of the process that forks workers."""


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder is deleted."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    return folder


@pytest.mark.parametrize("verb", [(TINY,), ("predict", TINY), ("verify", "/no/policy.yaml", TINY)])
def test_a_deleted_working_folder_is_named(
    nowhere: Path, verb: tuple[str | Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(one) for one in verb]) == 2
    said = capsys.readouterr().err
    assert "the current one was deleted. Change to another folder (cd)" in said
    assert len(said.splitlines()) == 1


def test_what_needs_no_working_folder_works_without(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    assert "checkpoint" in capsys.readouterr().out


def test_a_working_folder_that_goes_during_the_search_is_named(nowhere: Path) -> None:
    error = refused(FileNotFoundError(errno.ENOENT, "No such file or directory"), Path("/out"))
    assert isinstance(error, SurroundingsError)
    assert "was deleted" in str(error)


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left", "/out/ledger.jsonl"), OutputFolderError, "it finds, but /out/ledger"),
        (OSError(errno.ENOSPC, "No space left", "/tmp/x"), SurroundingsError, "but /tmp/x: No space left. Make room"),
        (OSError(errno.EMFILE, "Too many open files"), SurroundingsError, "Too many open files. Allow more open files"),
        (OSError(errno.EAGAIN, "try again"), SurroundingsError, "Allow more processes (ulimit -u)"),
        (OSError(errno.EPERM, "not permitted", "/outer"), SurroundingsError, "but /outer: not permitted. Give"),
    ],
)  # fmt: skip
def test_a_refusal_blames_the_output_folder_only_where_it_is_that(
    error: OSError, kind: type[Exception], expected: str
) -> None:
    named = refused(error, Path("/out"))
    assert type(named) is kind
    assert expected in str(named)
    assert str(named).endswith("run the same command again: finished trials are kept.")


def test_a_search_that_the_system_ends_says_what_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_files(_: Tuning) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Tuning, "run", out_of_files)
    result = run_here(TINY, *QUICK, "--output", "out", cwd=tmp_path)
    assert result.returncode == 2
    (line,) = [line for line in result.stderr.splitlines() if "error" in line]
    assert "Too many open files. Allow more open files (ulimit -n) and run the same command again" in line
    assert "output" not in line


@pytest.mark.slow
def test_after_a_full_disk_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file after the other finds no room; in the end there is, and no trial was run twice."""
    ran: list[str] = []
    wait, replace = Runner._wait, os.replace

    def waited(runner: Runner, spec: TrialSpec, *more: Any) -> tuple[TrialResult, bool]:
        if not isinstance(spec, LookTrial):
            ran.append(spec.key)
        return wait(runner, spec, *more)

    def full(name: str) -> None:
        def no_room(source: str | Path, target: str | Path) -> None:
            if Path(target).name == name:
                raise OSError(errno.ENOSPC, "No space left on device")
            replace(source, target)

        monkeypatch.setattr(os, "replace", no_room)

    monkeypatch.setattr(Runner, "_wait", waited)
    for name in ("study.json", "spec.json", "wrapper.py"):
        full(name)
        result = run_here(TINY, *QUICK, "--output", "out", cwd=tmp_path)
        assert result.returncode == 2, name
        said = result.stderr.splitlines()[-1]
        assert f"{name} cannot be written: No space left on device. Make room" in said or f"{name}: No space" in said
        assert "run the same command again" in said
        assert not list((tmp_path / "out").rglob(".*.part"))
    monkeypatch.setattr(os, "replace", replace)
    result = run_here(TINY, *QUICK, "--output", "out", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["recommendation"]["confirmation"]["outcome"] == "ok"
    assert len(ran) == len(set(ran)) >= 4


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_disk_that_is_full_for_the_study_is_no_damaged_study(tmp_path: Path, wrapped: bool) -> None:
    def fill() -> None:
        with quietly(tmp_path / "study.db"), contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as connection:
            connection.execute("pragma max_page_count = 1")
            try:
                connection.execute("create table one (text)")
            except sqlite3.Error as error:
                if wrapped:
                    raise sqlalchemy.exc.OperationalError("create", {}, error) from error
                raise

    with pytest.raises(OutputFolderError, match=r"study\.db cannot be written: database or disk is full\. Make room"):
        fill()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("NOT_UTF_8", "caf\udce9", "bytes that are not UTF-8"),
        ("LARGE", "x" * 130_000, "too large"),
    ],
)
def test_an_environment_that_cannot_be_handed_on_starts_a_process_and_no_server(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    def started(command: Any, environment: Mapping[str, str]) -> Any:
        return lambda descriptors, output: environment

    def none(_: Mapping[str, str]) -> ForkServer:
        raise AssertionError("a server was asked for")

    monkeypatch.setenv(name, value)
    monkeypatch.setattr(starting, "execute", started)
    monkeypatch.setattr(starting, "borrow", none)
    reader, output = os.pipe()
    environment: Any = WorkerStarter(starting.WORKER_COMMAND).starting((), 10.0)({}, output)
    assert environment[name] == value
    os.close(output)
    with open(reader, encoding="utf-8") as log:
        assert reason in log.read(), "whoever reads the log sees why"


@pytest.mark.slow
def test_a_trial_sees_bytes_of_the_environment_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOT_UTF_8", "caf\udce9")
    with Runner(tmp_path) as runner:
        result = runner.run(spec(kind=LookTrial))
    assert result.outcome is Outcome.OK, result.reason


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """A process in place of one that forks workers, which says nothing."""
    monkeypatch.setattr(fork_client, "_COMMAND", HOLDS_ON)
    monkeypatch.setattr(fork_client, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(fork_client, "_END_SECONDS", 0.2)
    started = fork_client.borrow({"MOMADVISE_TEST": "silent"})
    yield started
    fork_client.give_back(started)
    started.close()


def process_of(server: ForkServer) -> psutil.Process:
    assert server._process is not None
    return psutil.Process(server._process.pid)


def test_a_stopped_server_is_given_up_and_the_next_worker_is_started_without(server: ForkServer) -> None:
    process = process_of(server)
    process.suspend()
    begin = time.monotonic()
    with pytest.raises(UnforkableError, match="was stopped"):
        server.fork((), {}, 1, {}, seconds=60.0)
    assert time.monotonic() - begin < 30, "its libraries are not waited for"
    assert not process.is_running()
    another = fork_client.borrow({"MOMADVISE_TEST": "silent"})
    assert another is not server, "the next runner has one that forks"
    fork_client.give_back(another)


def test_a_server_that_is_continued_is_waited_for(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole job is stopped and continued, one process after the other."""
    process = process_of(server)
    process.suspend()
    looks = iter((True, True, False, True, True, False))
    monkeypatch.setattr(fork_client, "_is_stopped", lambda _: next(looks, False))
    with pytest.raises(TimeoutError):
        server.fork((), {}, 1, {}, seconds=0.3)


def test_a_server_that_does_not_answer_is_taken_to_be_gone(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "_ANSWER_SECONDS", 0.1)
    process = process_of(server)
    assert server.ask(fork_client.Look(process=1)) is None
    assert not process.is_running()


def in_terminal(terminal: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup ignore it, and so would the command
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.mark.slow
def test_a_search_whose_terminal_is_closed_keeps_its_best_and_leaves_nothing(tmp_path: Path) -> None:
    """The system sends SIGHUP, and every write to the terminal fails from then on."""
    (tmp_path / "tmp").mkdir()
    here, there = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(
        [*COMMAND, str(TINY), *QUICK[:2], "--trials", "30", *QUICK[4:], "--output", "out"],
        cwd=tmp_path, env=environment, stdin=there, stdout=there, stderr=there,
        preexec_fn=lambda: in_terminal(there),
    ) as command:  # fmt: skip
        os.close(there)
        ledger = tmp_path / "out" / "ledger.jsonl"
        while not (ledger.exists() and ledger.read_text().count('"outcome":"ok"') >= 2):
            assert command.poll() is None
            with contextlib.suppress(OSError):
                os.set_blocking(here, False)
                os.read(here, 65536)
            time.sleep(0.05)
        below = descendants(command.pid)
        os.close(here)
        assert command.wait(60) == 130
    assert wait_until_gone(below) == []
    answer = json.loads((tmp_path / "out" / "answer.json").read_text())
    assert not answer["complete"]
    assert answer["recommendation"]["winner"]["measurement"] is not None
    assert (tmp_path / "out" / "wrapper.py").exists()
    left = [path.name for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
    assert left == [], "torch's own cache aside"
