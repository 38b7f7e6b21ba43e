"""A process that keeps one core busy, as on a shared machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["one_core_busy"]

_SPIN = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    sum(range(100_000))
"""
"""It ends with the process that started it, however that one ends."""


@contextlib.contextmanager
def one_core_busy(wanted: bool = True) -> Iterator[None]:
    """Keep a core busy inside the block.

    The program has its own session, like one started by another user. Linux divides cores between sessions first
    (autogroups), and threads that wait for each other stall far more beside another session than beside another process
    of their own session.

    Args:
        wanted: Whether to keep a core busy at all.
    """
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())], start_new_session=True) as process:
        try:
            yield
        finally:
            process.kill()
