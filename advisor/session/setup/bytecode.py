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


def notes_on_bytecode(library: str = "torch") -> list[str]:
    """A note for the user if the library has no bytecode and gets none; it is not imported.

    Args:
        library: A package.
    """
    found = importlib.util.find_spec(library)
    if found is None or found.origin is None or found.cached is None or os.path.exists(found.cached):
        return []
    folder = Path(found.origin).parent
    if sys.dont_write_bytecode:
        reason = (
            "PYTHONDONTWRITEBYTECODE is set" if os.environ.get("PYTHONDONTWRITEBYTECODE") else "it was told so (-B)"
        )
    elif os.access(folder, os.W_OK):
        return []
    else:
        reason = f"{folder} cannot be written"
    return [
        f"Python compiles {library} and other libraries anew in every process, because {reason}: they take twice as "
        f"long to load. Compile them once: python -m compileall -q {shlex.quote(str(folder.parent))}"
    ]
