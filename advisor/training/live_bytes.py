"""How many bytes tensors take on a device now, for methods that weigh the parts of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar

import torch

__all__ = ["counting_with", "live_bytes"]

_COUNTER: ContextVar[Callable[[], int] | None] = ContextVar("counter", default=None)


def live_bytes(device: torch.device) -> int:
    """Bytes of the tensors that live; always 0 on a CPU where nobody counts them."""
    counter = _COUNTER.get()
    if counter is not None:
        return counter()
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


@contextlib.contextmanager
def counting_with(counter: Callable[[], int]) -> Generator[None]:
    """Context in which a function counts them."""
    token = _COUNTER.set(counter)
    try:
        yield
    finally:
        _COUNTER.reset(token)
