"""Work on long tensors chunk by chunk, so that it takes little memory beside input and output.

The number of chunks depends on the batch, and so do the allocations of a step. Whoever records them can listen for
where chunked work begins and ends, and count all of it as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["chunks", "telling_of_chunks"]

_ON_CPU = 2**15
"""Values at a time: they stay in the cache, and a batch of few samples fills a chunk already."""

_ELSEWHERE = 2**22
"""Values at a time where every operator is a launch that a small chunk would not hide."""

_listeners: list[Callable[[bool], None]] = []


def chunks(tensor: torch.Tensor, length: int, values_each: int = 1) -> Iterator[slice]:
    """Where the chunks lie.

    What the caller makes of one chunk should be gone before it asks for the next: work on it in a function of its own.

    Args:
        tensor: What is worked on; it names the device. Of a fake tensor the first chunk says all there is to know: its
            memory is used again for the others.
        length: What is cut: values, or groups of them.
        values_each: Values in each of these.

    Yields:
        One slice of ``range(length)`` after the other.
    """
    at_once = max(1, (_ON_CPU if tensor.device.type == "cpu" else _ELSEWHERE) // values_each)
    with _told():
        for first in range(0, min(length, at_once) if isinstance(tensor, FakeTensor) else length, at_once):
            yield slice(first, min(first + at_once, length))


@contextlib.contextmanager
def telling_of_chunks(listener: Callable[[bool], None]) -> Generator[None, None, None]:
    """Call ``listener`` with true where chunked work begins, and with false where it ends."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def _told() -> Generator[None, None, None]:
    for listener in _listeners:
        listener(True)
    try:
        yield
    finally:
        for listener in _listeners:
            listener(False)
