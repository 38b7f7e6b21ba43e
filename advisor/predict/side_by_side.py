"""Two calculations at once: one of them in a process that is forked from this one, where that is safe."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["may_fork", "side_by_side"]

First = TypeVar("First")
Second = TypeVar("Second")

_PATIENCE = 3.0
"""The forked one may take this many times as long as the other, and some seconds, before it is given up."""
_GRACE_SECONDS = 5.0

_PIECE = 1 << 20


def side_by_side(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """The results of two calculations that know nothing of each other.

    Where no process can be forked, and where the forked one comes to no result, the second is made here after the
    first: it costs time, and nothing else.

    Args:
        first: Made in this process.
        second: Changes nothing that is used afterwards; its result can be pickled.

    Raises:
        Exception: Whatever either raises.
    """
    forked = _Forked(second) if may_fork() else None
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
    """Whether a forked process would find all as it is here, and a core to run on.

    Threads do not come along, and what one of them has locked stays locked; nor does an opened GPU.
    """
    return (
        sys.platform == "linux"
        and len(os.sched_getaffinity(0)) > 1
        and threading.active_count() == 1
        and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    )


class _Forked:
    """A process that makes one calculation and sends its result, or ends without one."""

    def __init__(self, calculate: Callable[[], object]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else both would write what is in it
        self._pipe, there = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            _calculate(calculate, there)
        os.close(there)

    def received(self, seconds: float) -> bytes | None:
        """What it sends until it closes its end; ``None`` if that does not happen in time or it had no result."""
        deadline = time.monotonic() + seconds
        pieces: list[bytes] = []
        while select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(self._pipe, _PIECE)
            if not piece:
                return b"".join(pieces) or None
            pieces.append(piece)
        return None

    def end(self) -> None:
        """Leave nothing of it."""
        os.close(self._pipe)
        os.kill(self._process, signal.SIGKILL)  # not yet waited for, so that the number is still its own
        os.waitpid(self._process, 0)


def _calculate(calculate: Callable[[], object], pipe: int) -> None:
    """In the forked process: never returns."""
    try:
        # The threads that share an operator's work were not forked, and it would wait for them.
        torch.set_num_threads(1)
        data = memoryview(pickle.dumps(calculate()))
        while data:
            data = data[os.write(pipe, data) :]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # it is made again by the other process, which raises what it raises
        os._exit(1)
    os._exit(0)
