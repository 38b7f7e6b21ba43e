"""A LightningModule's ``log`` and ``log_dict`` outside of a Trainer's loop, where they raise or warn."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

__all__ = ["silent_log"]

_LOGS = ("log", "log_dict")


@contextlib.contextmanager
def silent_log(module: Any) -> Generator[None, None, None]:
    """Let a module log nothing."""
    for name in _LOGS:
        object.__setattr__(module, name, _nothing)
    try:
        yield
    finally:
        for name in _LOGS:
            object.__delattr__(module, name)


def _nothing(*_: Any, **__: Any) -> None: ...
