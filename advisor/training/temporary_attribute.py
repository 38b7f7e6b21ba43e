"""Set an attribute of an object for as long as a context lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

__all__ = ["temporarily"]


@contextlib.contextmanager
def temporarily(owner: Any, name: str, value: Any) -> Generator[None, None, None]:
    """Set an attribute of the object itself; what it had before returns at the end."""
    inherited, before = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
