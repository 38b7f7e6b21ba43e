"""Whose memory a method takes: the host's or the device's.

Where training runs the tensors themselves say so. Where a step is traced for a device that is not there, both are
tensors of the CPU: then those that a method makes on the host are known by being made inside of :func:`memory_of`.
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
    """Say whose memory the tensors take that are made in this block; changes nothing about them."""
    token = _SIDE.set(side)
    try:
        yield
    finally:
        _SIDE.reset(token)


def current_side() -> Side | None:
    """Whose memory is being taken, where somebody said so."""
    return _SIDE.get()
