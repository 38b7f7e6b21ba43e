"""Which devices the installed torch was built for, learned without importing it (which takes seconds)."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

__all__ = ["architectures_of_torch", "cuda_version_of_torch"]

_SECONDS = 120.0
"""Importing torch is slow on a busy disk."""


def cuda_version_of_torch(folder: Path | None = None) -> tuple[str | None, str]:
    """Tell the CUDA version that torch was built with.

    Args:
        folder: The installed package; found on the path by default.

    Returns:
        ``("13.0", "torch 2.13.0 built for CUDA 13.0")``, or ``None`` and the words for a build without CUDA.
    """
    if folder is None:
        spec = importlib.util.find_spec("torch")
        folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    if folder is None:
        return None, "torch is not installed"
    values = runpy.run_path(str(folder / "version.py"))  # a few assignments
    release = values.get("__version__") or importlib.metadata.version("torch")
    cuda = values.get("cuda")
    if cuda:
        return cuda, f"torch {release} is built for CUDA {cuda}"
    return None, f"torch {release} is built without CUDA"


@functools.cache
def architectures_of_torch() -> tuple[str, ...]:
    """GPUs that torch has kernels for, such as ``("sm_80", "sm_90", "compute_90")``; empty if unknown.

    Imports torch in a child process, which takes seconds.
    """
    command = [sys.executable, "-c", "import torch; print(torch._C._cuda_getArchFlags() or '')"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(answer.stdout.split())
