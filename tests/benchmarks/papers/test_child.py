"""A program ends with the command that started it, however that ends, and so does everything the program started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from benchmarks.papers import child
from benchmarks.papers.child import ask
from benchmarks.papers.command import TimeIsUpError

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 20.0

SLEEPER = """
import subprocess, sys, time
import msgspec
from benchmarks.papers.child import answer

class Request(msgspec.Struct):
    started: str
    below: bool = False

class Answer(msgspec.Struct):
    words: str

def sleep(request):
    if request.below:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(request.started, "w").close()
    time.sleep(600)

if __name__ == "__main__":
    answer(Request, sleep)
"""

ASKER = """
import sys
import msgspec
from benchmarks.papers.child import ask

class Request(msgspec.Struct):
    started: str

ask("sleeper", Request(started=sys.argv[1]), Request, time_limit_seconds=600.0)
"""


class Request(msgspec.Struct):
    started: str
    below: bool = False


class Answer(msgspec.Struct):
    words: str


@pytest.fixture(autouse=True)
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that sleeps instead of replying."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")


def wait_until_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + SECONDS
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
        assert time.monotonic() < deadline, "it must end with whoever asked"
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone can end a process with its parent")
@pytest.mark.parametrize("end", [psutil.Process.kill, psutil.Process.terminate])
def test_a_program_ends_with_the_command_that_asked_it(tmp_path: Path, end: object) -> None:
    started = tmp_path / "started"
    command = subprocess.Popen([sys.executable, "-c", ASKER, str(started)])
    try:
        deadline = time.monotonic() + SECONDS
        while not started.exists():
            assert time.monotonic() < deadline, "the program must begin"
            time.sleep(0.01)
        (program,) = psutil.Process(command.pid).children()
        end(psutil.Process(command.pid))  # type: ignore[operator]
        wait_until_gone([program])
    finally:
        command.kill()
        command.wait()


def test_everything_a_program_started_ends_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended even without a guardian, which workers have."""
    monkeypatch.setattr(child, "_GONE_SECONDS", 0.2)
    request = Request(started=str(tmp_path / "started"), below=True)
    seen: list[psutil.Process] = []
    end = child._end

    def look_and_end(program: subprocess.Popen[bytes]) -> None:
        seen.extend(psutil.Process(program.pid).children(recursive=True))
        end(program)

    monkeypatch.setattr(child, "_end", look_and_end)
    with pytest.raises(TimeIsUpError):
        ask("sleeper", request, Answer, time_limit_seconds=60.0, until=time.monotonic() + 3.0)
    assert (tmp_path / "started").exists(), "it had begun"
    assert seen
    wait_until_gone(seen)


def test_a_program_that_takes_too_long_has_a_reason(tmp_path: Path) -> None:
    found, reason = ask("sleeper", Request(started=str(tmp_path / "started")), Answer, time_limit_seconds=0.5)
    assert found is None
    assert reason == "timeout: it took longer than its limit of 0.5 s"
