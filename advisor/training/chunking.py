"""Process long tensors in chunks, to take little memory beyond input and output.

The number of chunks, and so of allocations, depends on the batch. Recorders of allocations can listen for the beginning
and end of chunked work and count all of it as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["chunks", "telling_of_chunks"]

_ON_CPU = 2**15
"""Values at a time: they fit in the cache, and even a small batch fills a chunk."""

_ELSEWHERE = 2**22
"""Values at a time on a GPU, where small chunks would not hide the kernel launches."""

_listeners: list[Callable[[bool], None]] = []


def chunks(tensor: torch.Tensor, length: int, values_each: int = 1) -> Iterator[slice]:
    """Yield the chunks of a tensor as slices of ``range(length)``.

    The caller should free its temporaries before asking for the next chunk: process each in a function of its own.

    Args:
        tensor: The tensor, for its device. A fake tensor yields only the first chunk: the others reuse its memory.
        length: Number of values, or of groups of values, to split.
        values_each: Values per group.
    """
    at_once = max(1, (_ON_CPU if tensor.device.type == "cpu" else _ELSEWHERE) // values_each)
    with _told():
        for first in range(0, min(length, at_once) if isinstance(tensor, FakeTensor) else length, at_once):
            yield slice(first, min(first + at_once, length))


@contextlib.contextmanager
def telling_of_chunks(listener: Callable[[bool], None]) -> Generator[None, None, None]:
    """Call ``listener`` with true when chunked work begins, and with false when it ends."""
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
