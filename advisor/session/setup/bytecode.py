"""A note where Python compiles the libraries anew in every process.

It keeps their bytecode beside them, but not where ``PYTHONDONTWRITEBYTECODE`` is set or the folder cannot be written,
as in many containers. Installers other than pip leave compiling to the first import. To load torch then takes twice as
long, in each process of the search and of the training.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

__all__ = ["notes_on_bytecode"]

_INSTALLED_IN = ("site-packages", "dist-packages")


def notes_on_bytecode(library: str = "torch") -> list[str]:
    """A note for the user if the library has no bytecode and gets none; it is not imported.

    Args:
        library: A package.
    """
    found = importlib.util.find_spec(library)
    if found is None or found.origin is None or found.cached is None or os.path.exists(found.cached):
        return []
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        folder = Path(found.origin).parent
        every = folder.parent if folder.parent.name in _INSTALLED_IN else folder
        reason = "PYTHONDONTWRITEBYTECODE is set"
        fix = f"Compile them once: {shlex.join([sys.executable, '-m', 'compileall', '-q', str(every)])}"
    else:
        place = next(one for one in Path(found.cached).parents if one.exists())
        if os.access(place, os.W_OK):
            return []
        reason = f"{place} cannot be written"
        fix = "Set PYTHONPYCACHEPREFIX to a folder that can be, or have whoever may write it run python -m compileall"
    return [
        f"Python compiles {library} and other libraries anew in every process, because {reason}: they take twice as "
        f"long to load. {fix}"
    ]
