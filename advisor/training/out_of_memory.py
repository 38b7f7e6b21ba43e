"""Whether an error says that memory ran out: by its type, and by the words of torch and CUDA's libraries.

``torch.OutOfMemoryError`` alone is not enough. Up to torch 2.13 an allocator that is out of memory asks NVML who has
it, and where that is not allowed (on a MIG instance, on a Jetson) a failed assertion is all that it raises.
"""

from __future__ import annotations

import torch

from advisor.errors import DeviceOutOfMemoryError

__all__ = ["is_of_cpu_allocator", "is_of_cuda_runtime", "is_of_device", "is_out_of_memory"]

_CPU_ALLOCATOR = "can't allocate memory"
_CUDA_RUNTIME = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory")
_CUDA_LIBRARIES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
)
_ASSERTION = ("NVML_SUCCESS == r INTERNAL ASSERT FAILED", "CUDACachingAllocator")
"""Both are in the message: what failed, and the file."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, whichever it was: says nothing about the model or the method that needed it."""
    return (
        isinstance(error, MemoryError) or is_of_device(error) or is_of_cpu_allocator(error) or is_of_cuda_runtime(error)
    )


def is_of_device(error: BaseException) -> bool:
    """Whether the memory of the device, or the limit on it, was too small, beyond doubt."""
    if isinstance(error, DeviceOutOfMemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        any(name in text for name in _CUDA_LIBRARIES) or all(words in text for words in _ASSERTION)
    )


def is_of_cpu_allocator(error: BaseException) -> bool:
    """Whether torch got no memory from the host for a tensor on the CPU."""
    return isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)


def is_of_cuda_runtime(error: BaseException) -> bool:
    """Whether CUDA said so: of the device, or of page-locked memory of the host."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CUDA_RUNTIME)
