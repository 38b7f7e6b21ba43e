"""Messages between the parent and the fork server: one JSON object per packet."""

from __future__ import annotations

import msgspec

__all__ = ["LARGEST_MESSAGE", "Fork", "ForkAnswer", "ForkRequest", "Forked", "Look", "Seen", "Unforkable"]

LARGEST_MESSAGE = 2**17
"""Bytes, of the 208 KiB that Linux takes in a packet by default; with a larger environment workers are started."""


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a worker. Sent together with its descriptors, and last with that for what it prints.

    Attributes:
        flags: Names of the arguments that tell the numbers of its descriptors.
    """

    arguments: list[str]
    flags: list[str]
    folder: str
    environment: dict[str, str]


class Look(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How has a worker's guardian ended?

    Attributes:
        kill_seconds: Kill what is left of its process group first, and wait so long for it to end.
    """

    process: int
    kill_seconds: float | None = None


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A worker's guardian has been started."""

    process: int


class Unforkable(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Workers cannot be forked here."""

    reason: str


class Seen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How a process has ended.

    Attributes:
        status: Exit status, or minus the number of the signal that ended it; ``None`` if it has not.
    """

    status: int | None


ForkRequest = Fork | Look
ForkAnswer = Forked | Seen | Unforkable
