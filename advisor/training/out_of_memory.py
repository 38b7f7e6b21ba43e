"""Whether an error says that memory ran out: by its type, and by the words of torch and CUDA's libraries.

``torch.OutOfMemoryError`` alone is not enough. Up to torch 2.13, an allocator that is out of memory asks NVML which
process holds it; where that is not allowed (on a MIG instance, on a Jetson), it raises only a failed assertion.
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
"""The message has both: what failed, and the file."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether any memory ran out: no verdict on the model or the method."""
    return (
        isinstance(error, MemoryError) or is_of_device(error) or is_of_cpu_allocator(error) or is_of_cuda_runtime(error)
    )


def is_of_device(error: BaseException) -> bool:
    """Whether the memory of the device, or the limit on it, was certainly too small."""
    if isinstance(error, DeviceOutOfMemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        any(name in text for name in _CUDA_LIBRARIES) or all(words in text for words in _ASSERTION)
    )


def is_of_cpu_allocator(error: BaseException) -> bool:
    """Whether torch could not allocate host memory for a CPU tensor."""
    return isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)


def is_of_cuda_runtime(error: BaseException) -> bool:
    """Whether CUDA reported it, for the device or for page-locked host memory."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CUDA_RUNTIME)
