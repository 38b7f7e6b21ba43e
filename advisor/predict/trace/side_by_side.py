"""Two calculations at once: one of them in a forked process, where that is safe."""

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

_PATIENCE, _GRACE_SECONDS = 3.0, 5.0
"""The forked one is given up after this many times as long as the other takes, and some seconds."""

_PIECE = 1 << 20
_LENGTH_BYTES = 8


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
    here, there = os.pipe()
    try:
        process = os.fork()
    except OSError:
        os.close(here)
        os.close(there)
        return None
    if process == 0:
        _calculate(calculate, there)
    os.close(there)
    return _Forked(process, here)


class _Forked:
    """A process that makes one calculation and sends its result through a pipe, or ends without one."""

    def __init__(self, process: int, pipe: int) -> None:
        self._process = process
        self._pipe = pipe

    def received(self, seconds: float) -> bytes | None:
        """What it sends; ``None`` if that is not there in time or not complete."""
        deadline = time.monotonic() + seconds
        data = bytearray()
        while select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(self._pipe, _PIECE)
            if not piece:
                break
            data += piece
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        complete = len(data) >= _LENGTH_BYTES and len(data) == _LENGTH_BYTES + length
        return bytes(data[_LENGTH_BYTES:]) if complete else None

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
        result = pickle.dumps(calculate())
        data = memoryview(len(result).to_bytes(_LENGTH_BYTES, "little") + result)
        while data:
            data = data[os.write(pipe, data) :]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # it is made again by the other process, which raises what it raises
        os._exit(1)
    os._exit(0)
