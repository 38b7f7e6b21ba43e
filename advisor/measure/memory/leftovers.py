"""Whether a trial gave back all memory that it took: otherwise the figures of the next one would be wrong."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import psutil
import torch

from advisor.measure.memory.storages import HostData, living_tensors, storages_of

__all__ = ["MemoryBaseline", "host_cache_emptier"]

_TENSOR_TOLERANCE = 2**20
_CUDA_TOLERANCE = 4 * 2**20
_HOST_TOLERANCE = {"cpu": 512 * 2**20, "cuda": 2 * 2**30}
"""Libraries of kernels that are first used in a trial, and stay, take several hundred MiB of the host beside a GPU."""


class MemoryBaseline:
    """What the process held before a trial.

    Args:
        device: Where the trial runs.
        host_data: Everything that existed before; it is no leftover.
        cuda: ``torch.cuda``, or an object with the same functions.
        empty_host_cache: Frees the page-locked memory that torch caches.
    """

    def __init__(
        self,
        device: torch.device,
        host_data: HostData,
        cuda: Any = torch.cuda,
        empty_host_cache: Callable[[], None] | None = None,
    ) -> None:
        self._device = device
        self._host_data = host_data
        self._cuda = cuda
        self._empty_host_cache = empty_host_cache or host_cache_emptier(torch)
        self._host_bytes = _host_bytes()
        self._cuda_bytes = self._allocated()

    def leftover(self, *, kept_bytes: int = 0) -> str:
        """What the trial left behind, in words; empty when memory is back where it was.

        Call it when nothing of the trial is referred to any more.

        Args:
            kept_bytes: Host memory that this package keeps for later trials.
        """
        gc.collect()
        if self._device.type == "cuda":
            self._empty_host_cache()
        kept = sum(
            storage.nbytes()
            for storage in storages_of(living_tensors(), torch.device("cpu")).values()
            if storage not in self._host_data
        )
        if kept > _TENSOR_TOLERANCE:
            return f"{kept} bytes of tensors on the host stayed alive after the trial"
        if any(tensor.grad_fn is not None for tensor in living_tensors()):
            # The graph behind it keeps activations alive that Python cannot see.
            return "a tensor with its autograd graph stayed alive after the trial"
        grown = self._allocated() - self._cuda_bytes
        if grown > _CUDA_TOLERANCE:
            return f"{grown} bytes on {self._device} stayed allocated after the trial"
        grown = _host_bytes() - self._host_bytes - kept_bytes
        if grown > _HOST_TOLERANCE[self._device.type]:
            return f"the process grew by {grown} bytes"
        return ""

    def _allocated(self) -> int:
        if self._device.type != "cuda":
            return 0
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces is not None and self._cuda is torch.cuda:
            clear_workspaces()  # held by the library, not by the trial
        self._cuda.empty_cache()
        return int(self._cuda.memory_allocated(self._device))


def host_cache_emptier(library: Any) -> Callable[[], None]:
    """The function that empties the cache of page-locked memory; it has had two places, and none before torch 2.5."""
    for place, name in ((getattr(library, "accelerator", None), "empty_host_cache"), (library._C, "_host_emptyCache")):
        found: Callable[[], None] | None = getattr(place, name, None)
        if found is not None:
            return found
    return lambda: None


def _host_bytes() -> int:
    """Resident bytes that are this process's own, after the C allocator gave back what it only keeps in store.

    Pages of files do not count: libraries are loaded when they are first used, and are nobody's leftover.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
    memory = psutil.Process().memory_info()
    return int(memory.rss) - int(getattr(memory, "shared", 0))  # Linux alone tells the shared pages apart
