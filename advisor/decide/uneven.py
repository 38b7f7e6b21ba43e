"""Whether processes of one training differ in how many pages a step takes from the system.

glibc gives free memory back when it lies at the end of its heap, and what lies there is a matter of chance: one process
takes a thousand pages in every step, the next one none, and both keep to that.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["are_many", "are_uneven"]

_MANY = 100.0
"""Pages a step from which on they may cost some percent of a step of a millisecond."""

_OF_ONE_BLOCK = 8192
"""Pages of 4 KiB in the smallest block that glibc maps anew however often it was freed (32 MiB). Fewer in a step are of
the end of the heap, so that they are a matter of chance although some processes agree."""

_APART = 1.5
"""Ratio of two processes above which their pages a step are not the same but for what happens now and then."""


def are_many(readings: Sequence[float]) -> bool:
    """Whether the pages that a step takes may matter, in any process.

    Args:
        readings: Pages a step, one reading for each process.
    """
    return max(readings, default=0.0) >= _MANY


def are_uneven(readings: Sequence[float]) -> bool:
    """Whether the next process may well take another number of them than these took."""
    if not are_many(readings):
        return False
    return max(readings) < _OF_ONE_BLOCK or max(readings) > _APART * min(readings)
