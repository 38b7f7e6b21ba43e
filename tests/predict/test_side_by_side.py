"""Two calculations at once: whatever becomes of the forked process, both results are there and it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from advisor.predict.trace import side_by_side as module
from advisor.predict.trace.side_by_side import may_fork, side_by_side

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

HERE = os.getpid()


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test processes have threads that take no part in this."""
    monkeypatch.setattr(module, "may_fork", lambda: True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def elsewhere(do: Callable[[], object]) -> str:
    """Do it in the forked process only."""
    if os.getpid() != HERE:
        do()
        return "forked"
    return "here"


def test_the_second_is_made_in_another_process() -> None:
    assert side_by_side(os.getpid, lambda: elsewhere(lambda: None)) == (HERE, "forked")


def test_a_long_result_arrives_whole() -> None:
    data = os.urandom(3_000_000)
    assert side_by_side(lambda: time.sleep(0.05), lambda: (data, elsewhere(lambda: None))) == (None, (data, "forked"))


def test_a_result_of_which_a_part_arrived_is_made_here() -> None:
    before = psutil.Process().children()

    def kill() -> None:
        time.sleep(0.3)  # the pipe is full by now, and nobody reads yet
        for child in psutil.Process().children():
            if child not in before:  # what forks the workers of other tests goes on
                child.kill()

    found = side_by_side(kill, lambda: (elsewhere(lambda: None), b"0" * 3_000_000))[1]
    assert found[0] == "here"


def test_where_no_process_can_be_made_it_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(module.os, "fork", fork)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    assert side_by_side(lambda: 1, os.getpid) == (1, HERE)
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_operators_do_not_wait_for_threads_that_were_not_forked() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1_000_000).add_(1.0)
        _, found = side_by_side(
            lambda: None, lambda: (elsewhere(lambda: None), float(torch.ones(1_000_000).add_(1.0).sum()))
        )
        assert found == ("forked", 2e6)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "ending",
    [lambda: os._exit(3), lambda: os.kill(os.getpid(), 9), lambda: time.sleep(600), lambda: 1 / 0],
    ids=["ends", "is killed", "hangs", "raises"],
)
def test_without_a_result_of_the_forked_process_it_is_made_here(
    ending: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.3)
    assert side_by_side(lambda: 1, lambda: elsewhere(ending)) == (1, "here")


def test_a_result_that_cannot_be_sent_is_made_here() -> None:
    assert side_by_side(lambda: 1, lambda: lambda: os.getpid())[1]() == HERE


def test_what_either_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda: 1 / 0, lambda: time.sleep(600))
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda: 1, lambda: 1 / 0)


def test_what_was_printed_before_is_printed_once() -> None:
    program = (
        "from advisor.predict.trace import side_by_side as module; module.may_fork = lambda: True; print('before'); "
        "module.side_by_side(lambda: print('here'), lambda: print('there'))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.count("before") == 1, result
    assert "there" in result.stdout


def test_a_process_with_threads_a_gpu_or_one_core_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.threading, "active_count", lambda: 1)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert may_fork()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not may_fork()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: {0})
    assert not may_fork()
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(module.threading, "active_count", lambda: 2)
    assert not may_fork()
