"""Whether this process can be forked, with the forked process behaving like a new one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

__all__ = ["can_fork", "why_not_to_fork"]

_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/dxg")


def can_fork() -> bool:
    """Whether this system supports it."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def why_not_to_fork(descriptors: Path = Path("/proc/self/fd")) -> str:
    """Why a forked process would differ from a new one; empty if it would not.

    Args:
        descriptors: Folder of links to what this process has opened.
    """
    for link in descriptors.iterdir():
        with contextlib.suppress(OSError):  # closed since: the folder itself was open
            target = os.readlink(link)
            if target.startswith(_GPUS):
                return f"loading the libraries opened {target}, which a forked process cannot use"
    return ""
