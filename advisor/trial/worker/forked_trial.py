"""One trial in a process that is forked for it, so that it begins as a training does: with nothing in its memory."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import psutil

from advisor.trial.guardian import end_with_parent

__all__ = ["end_children", "end_like", "run_forked"]

_DONE = b"."


def run_forked(work: Callable[[], None]) -> int | None:
    """Do something in a forked process and wait for its end.

    Returns:
        ``None`` if it came to its end; else the exit status of the process, or minus the number of the signal that
        ended it.

    Raises:
        OSError: No process can be forked.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else both would write what is in it
    here, there = os.pipe()
    try:
        worker = os.getpid()
        process = os.fork()
        if process == 0:
            os.close(here)
            _work(work, worker, there)
        _, status = os.waitpid(process, 0)
        os.set_blocking(here, False)  # a process of the user's model may hold the other end open
        with contextlib.suppress(BlockingIOError):
            if os.read(here, 1) == _DONE:
                return None
        return os.waitstatus_to_exitcode(status)
    finally:
        os.close(here)
        os.close(there)


def _work(work: Callable[[], None], worker: int, done: int) -> NoReturn:
    status = 1
    try:
        end_with_parent(worker)
        work()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the user's model may have closed or replaced it
                stream.flush()
        os.write(done, _DONE)
        status = 0
    finally:
        os._exit(status)  # what libraries and the model registered to be done at the end is the worker's


def end_children(*, but: Sequence[int] = ()) -> None:
    """End what trials have left running, orphans included where this process adopts them."""
    for child in psutil.Process().children():
        if child.pid not in but:
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in (*child.children(recursive=True), child):
                    one.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


def end_like(status: int) -> NoReturn:
    """End this process as another one has ended, for whoever watches it."""
    if status < 0:
        faulthandler.disable()  # the trial has written its own stack
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 1)
