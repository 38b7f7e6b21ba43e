"""Memory settings of glibc, the C library of most Linux systems, in a running process."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

__all__ = [
    "gives_back",
    "keep_freed_memory",
    "keeps_by_environment",
    "resident_bytes",
    "trim",
    "usual_again",
    "why_no_mallopt",
]

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
"""Parameters of ``mallopt``, as malloc.h defines them."""

_USUAL_MAPPINGS = 65536
_LARGEST_THRESHOLD = 32 * 2**20
"""The largest block that glibc adjusts its threshold for mappings to, by itself, on 64 bits (``HEAP_MAX_SIZE / 2``)."""

_PROBED_BYTES = 64 * 2**20
"""A block that no setting but "no mappings" serves from memory that is kept."""


def why_no_mallopt() -> str:
    """Why ``mallopt`` does not decide where this process's memory comes from; empty if it does."""
    if sys.platform != "linux":
        return f"it is a setting of glibc, the C library of most Linux systems, but the system is {sys.platform}"
    process = ctypes.CDLL(None)
    if not all(hasattr(process, name) for name in ("gnu_get_libc_version", "mallopt")):
        return "it is a setting of glibc, and this Linux has another C library"
    if _address(process.malloc) != _address(ctypes.CDLL("libc.so.6").malloc):
        return "it is a setting of glibc's allocator, and this process takes its memory from another (see LD_PRELOAD)"
    return ""


def keeps_by_environment() -> bool:
    """Whether this process was started with the settings of :func:`keep_freed_memory`; glibc cannot be asked."""
    tunables = dict(pair.partition("=")[::2] for pair in os.environ.get("GLIBC_TUNABLES", "").split(":"))
    mappings = os.environ.get("MALLOC_MMAP_MAX_") or tunables.get("glibc.malloc.mmap_max")
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_") or tunables.get("glibc.malloc.trim_threshold")
    return mappings == "0" and threshold is not None


def keep_freed_memory() -> None:
    """Serve blocks of every size from the heap, and never shorten the heap.

    A threshold is not enough: glibc refuses any above 32 MiB, and activations are larger.
    """
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, -1)


def usual_again() -> None:
    """Set the thresholds at which glibc's own adjustment to freed blocks ends, and return free memory.

    The adjustment stops for good when a program sets a threshold.
    """
    _set(_MMAP_MAX, _USUAL_MAPPINGS)
    _set(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
    _set(_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)
    trim()


def trim() -> None:
    """Give all that is free back to the system."""
    ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Resident bytes of this process, without pages of files."""
    _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def gives_back() -> bool:
    """Whether a large block of torch's goes back to the system when it is freed; not if free memory served it."""
    import torch

    block: torch.UntypedStorage = torch.UntypedStorage(_PROBED_BYTES)  # type: ignore[no-untyped-call]
    ctypes.memset(block.data_ptr(), 1, _PROBED_BYTES)
    held = resident_bytes()
    del block
    return held - resident_bytes() > _PROBED_BYTES // 2


def _set(parameter: int, value: int) -> None:
    done = ctypes.CDLL(None).mallopt(parameter, value)
    assert done == 1, f"glibc takes these values, but refused {value} for {parameter}"


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
