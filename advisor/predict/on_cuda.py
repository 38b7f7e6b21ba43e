"""A trace on this machine that stands for one on a CUDA device, and what torch's allocator would take there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator

import msgspec

from advisor.predict.attention_choice import AttentionGpu
from advisor.predict.cuda_kernels import as_cuda
from advisor.predict.cuda_optimizers import optimizers_as_on_cuda
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.predict.reserved import allocation_log, reserved
from advisor.predict.step_trace import StepTrace

__all__ = ["cublas_workspace_bytes", "on_cuda", "standing_for"]

_HOPPER = (9, 0)
_THREADS = 2
"""Of a training that multiply, each with a workspace of its own: the caller's, and that of the backward pass."""


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
    one = 32 * 2**20 if device.compute_capability >= _HOPPER else (2 * 4096 + 8 * 16) * 2**10
    return _THREADS * one


def on_cuda(
    prediction: MemoryPrediction,
    first: StepTrace,
    second: StepTrace,
    *,
    micro_batch: int,
    limit_bytes: int,
    device: CudaDevice,
) -> MemoryPrediction:
    """Complete a prediction with what the caching allocator would take, and with what is known to be missing.

    Args:
        prediction: Of live bytes.
        first: A trace that it was made of, on the device or standing for it.
        second: The other.
        micro_batch: The batch asked for.
        limit_bytes: What the training may take.
        device: The device.
    """
    notes = list(prediction.notes)
    if first.calls or second.calls:
        notes.append("What cuDNN takes inside of convolutions is not in it: a real run needs more.")
    log = allocation_log(first, second)
    if log is None:
        notes.append("Steps at two batches differ in more than sizes: what the allocator reserves is not predicted.")
        return msgspec.structs.replace(prediction, notes=tuple(notes))
    workspace_bytes = cublas_workspace_bytes(device)
    most = prediction.largest_batch(limit_bytes - workspace_bytes)
    replays = tuple(
        reserved(
            log,
            micro_batch=micro_batch,
            expandable=expandable,
            limit_bytes=limit_bytes,
            at_most=0 if most == math.inf else math.floor(most),
            workspace_bytes=workspace_bytes,
        )
        for expandable in (False, True)
    )
    return msgspec.structs.replace(prediction, notes=tuple(notes), reserved=replays)
