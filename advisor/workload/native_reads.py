"""Records files that native code opens unseen by Python: those of safetensors."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["hearing_safetensors"]


@contextlib.contextmanager
def hearing_safetensors(note: Callable[[str], None]) -> Iterator[None]:
    """Tell which files are opened meanwhile, by whoever has imported the function that opens them.

    Args:
        note: Called with each file as it is opened.
    """
    if importlib.util.find_spec("safetensors") is None:
        yield
        return
    original = importlib.import_module("safetensors").safe_open

    def safe_open(filename: str | os.PathLike[str], *arguments: Any, **options: Any) -> Any:
        note(os.path.abspath(os.fspath(filename)))
        return original(filename, *arguments, **options)

    _replace(original, safe_open)
    try:
        yield
    finally:
        _replace(safe_open, original)


def _replace(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get("safe_open") is old:
            names["safe_open"] = new
