"""Two calculations at once: one of them in a forked process, where that is safe."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeVar

import torch

__all__ = ["may_fork", "side_by_side"]

First = TypeVar("First")
Second = TypeVar("Second")

_PATIENCE, _GRACE_SECONDS = 3.0, 5.0
"""The forked one is given up after this many times as long as the other takes, and some seconds."""


def side_by_side(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """The results of two independent calculations, or what either raises.

    Where no process can be forked, or the forked one comes to no result, the second runs here after the first.

    Args:
        first: Runs in this process.
        second: Changes nothing that is used afterwards; its result can be pickled.
    """
    forked = _fork(second) if may_fork() else None
    begin = time.monotonic()
    try:
        one = first()
        other = None if forked is None else forked.received(_PATIENCE * (time.monotonic() - begin) + _GRACE_SECONDS)
    finally:
        if forked is not None:
            forked.end()
    if other is None:
        return one, second()
    result: Second = pickle.loads(other)
    return one, result


def may_fork() -> bool:
    """Whether a forked process would find everything as it is here, and a core to run on.

    Threads are not forked, and what one of them has locked stays locked; nor can a GPU be used.
    """
    return (
        sys.platform == "linux"
        and len(os.sched_getaffinity(0)) > 1
        and threading.active_count() == 1
        and not torch.cuda.is_available()
    )


def _fork(calculate: Callable[[], object]) -> _Forked | None:
    """A process that makes it; ``None`` if none can be forked."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else both would write what is in it
    here, there = multiprocessing.Pipe(duplex=False)
    try:
        process = os.fork()
    except OSError:
        here.close()
        there.close()
        return None
    if process == 0:
        _calculate(calculate, there)
    there.close()
    return _Forked(process, here)


class _Forked(NamedTuple):
    """A process that makes one calculation and sends its result, or ends without one."""

    process: int
    sent: Connection

    def received(self, seconds: float) -> bytes | None:
        """What it sends; ``None`` if that does not arrive in time, or not completely."""
        with contextlib.suppress(EOFError, OSError):
            return self.sent.recv_bytes() if self.sent.poll(seconds) else None
        return None

    def end(self) -> None:
        """Leave nothing of it."""
        self.sent.close()
        os.kill(self.process, signal.SIGKILL)  # not yet waited for, so that the number is still its own
        os.waitpid(self.process, 0)


def _calculate(calculate: Callable[[], object], pipe: Connection) -> None:
    """In the forked process: never returns."""
    try:
        # The threads that share an operator's work were not forked, and it would wait for them.
        torch.set_num_threads(1)
        pipe.send_bytes(pickle.dumps(calculate()))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # it is made again by the other process, which raises what it raises
        os._exit(1)
    os._exit(0)
