"""Importing large libraries in less time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["quick_imports"]


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Look for no garbage meanwhile.

    What an import makes is there to stay, and every collection goes through all of it again: a fifth of the seconds
    that torch takes.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
