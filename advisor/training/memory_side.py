"""Whether a method allocates memory on the host or on the device.

In a real training, a tensor's device tells. In a trace for an absent device, all tensors are on the CPU, so methods
create those for the host inside :func:`memory_of`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Generator
from contextvars import ContextVar

__all__ = ["Side", "current_side", "memory_of"]


class Side(enum.Enum):
    """The two sides of a copy."""

    HOST = "host"
    DEVICE = "device"


_SIDE: ContextVar[Side | None] = ContextVar("side", default=None)


@contextlib.contextmanager
def memory_of(side: Side) -> Generator[None, None, None]:
    """Declare where the tensors created in this block take memory; does not change them."""
    token = _SIDE.set(side)
    try:
        yield
    finally:
        _SIDE.reset(token)


def current_side() -> Side | None:
    """Where memory is being taken, if declared."""
    return _SIDE.get()
