"""Run a program of this package that loads torch, so that the process of the command never does.

For work that is not a trial of momadvise: comparing a hand-written loop, another library's search, or a complete
answer. Whatever ends the command also ends the program and everything it has started.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from advisor.trial.guardian import end_with_parent
from benchmarks.papers.command import TimeIsUpError

__all__ = ["answer", "ask"]

_ROOT = Path(__file__).resolve().parents[2]

_GONE_SECONDS = 5.0
"""Longest wait until everything that a program has started has ended with it."""

_POLL_SECONDS = 0.01

_Request = TypeVar("_Request", bound=msgspec.Struct)
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


def ask(
    module: str,
    request: msgspec.Struct,
    answer_type: type[_Answer],
    *,
    time_limit_seconds: float,
    until: float = math.inf,
) -> tuple[_Answer | None, str]:
    """Run ``python -m MODULE`` with a request and wait for its reply.

    Args:
        module: Dotted name of a module that ends in :func:`answer`.
        request: Sent to its standard input as JSON.
        answer_type: Type of the reply in the last line of its output.
        time_limit_seconds: After this time the program is ended.
        until: Moment of ``time.monotonic`` at which the caller stops waiting.

    Returns:
        The reply, or ``None`` and the reason.

    Raises:
        TimeIsUpError: That moment came before the program's own limit.
    """
    left = until - time.monotonic()
    command = [sys.executable, "-m", module, str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=_ROOT) as program:
        try:
            printed, errors = program.communicate(
                msgspec.json.encode(request), timeout=max(0.0, min(time_limit_seconds, left))
            )
        except subprocess.TimeoutExpired:
            if left < time_limit_seconds:
                raise TimeIsUpError from None
            return None, f"timeout: it took longer than its limit of {time_limit_seconds:g} s"
        finally:
            _end(program)
    if program.returncode != 0:
        return None, f"exit status {program.returncode}: {_last_line(errors)}"
    try:
        return msgspec.json.decode(_last_line(printed), type=answer_type), ""
    except msgspec.DecodeError as error:
        return None, f"it printed no answer: {error}"


def answer(request_type: type[_Request], work: Callable[[_Request], msgspec.Struct]) -> None:
    """The program's side: read the request, do the work, print the reply; the process ends when its parent does."""
    end_with_parent(int(sys.argv[1]))
    found = work(msgspec.json.decode(sys.stdin.buffer.read(), type=request_type))
    print(msgspec.json.encode(found).decode(), flush=True)


def _end(program: subprocess.Popen[bytes]) -> None:
    """End a program that is still running, and wait for everything it has started.

    The guardian of a worker ends it as soon as the program is gone. Until then it may hold memory of the device that is
    measured next, and write to a folder that is about to be removed.
    """
    if program.returncode is not None:
        return
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(program.pid).children(recursive=True)
    program.kill()
    program.wait()
    deadline = time.monotonic() + _GONE_SECONDS
    while below := [one for one in below if _runs(one)]:
        if time.monotonic() > deadline:
            for one in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            return
        time.sleep(_POLL_SECONDS)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
