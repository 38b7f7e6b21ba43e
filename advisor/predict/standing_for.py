"""Everything that lets a trace on this machine stand for one on a CUDA device, and what that device holds besides."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from advisor.predict.attention_choice import AttentionGpu
from advisor.predict.cuda_kernels import as_cuda
from advisor.predict.cuda_optimizers import optimizers_as_on_cuda
from advisor.predict.prediction import CudaDevice

__all__ = ["cublas_workspace_bytes", "standing_for"]

_HOPPER = (9, 0)


@contextlib.contextmanager
def standing_for(device: CudaDevice) -> Generator[None, None, None]:
    """Let fake CPU tensors take the paths of a CUDA device; the whole step, from building the model, belongs inside."""
    with as_cuda(AttentionGpu(compute_capability=device.compute_capability)), optimizers_as_on_cuda():
        yield


def cublas_workspace_bytes(device: CudaDevice) -> int:
    """What torch takes from its allocator for cuBLAS, once and for good.

    Source: ``parseChosenWorkspaceSize`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of PyTorch; without
    ``CUBLAS_WORKSPACE_CONFIG``, and for one stream.
    """
    if device.compute_capability >= _HOPPER:
        return 32 * 2**20
    return (2 * 4096 + 8 * 16) * 2**10
