"""Whether an error is one of memory, in the words of everything that may say so."""

from __future__ import annotations

import pytest
import torch

from advisor.errors import DeviceOutOfMemoryError
from advisor.training.out_of_memory import is_of_device, is_out_of_memory

ON_A_MIG_INSTANCE = RuntimeError(
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/c10/cuda/CUDACachingAllocator.cpp":1165, please report a bug'
)
"""From torch 2.13, where NVML tells nobody who has the memory."""


@pytest.mark.parametrize(
    ("error", "of_device"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (DeviceOutOfMemoryError("the limit"), True),
        (ON_A_MIG_INSTANCE, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), False),  # or of the host, for page-locked memory
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), False),
        (MemoryError(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_memory(error: Exception, of_device: bool) -> None:
    assert is_out_of_memory(error)
    assert is_of_device(error) is of_device


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("view size is not compatible with input tensor's size and stride, which need memory"),
        RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/c10/cuda/Other.cpp":1'),
        ValueError("CUDA error: out of memory"),
    ],
    ids=str,
)
def test_another_error(error: Exception) -> None:
    assert not is_out_of_memory(error)
