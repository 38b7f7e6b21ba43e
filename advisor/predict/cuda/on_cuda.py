"""A trace that stands for one on a CUDA device, and what torch's allocator would reserve there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator
from typing import Any

import msgspec
import torch

from advisor.predict.cuda.attention_choice import AttentionGpu
from advisor.predict.cuda.dispatch import as_cuda
from advisor.predict.cuda.optimizers import optimizers_as_on_cuda
from advisor.predict.cuda.reserved import allocation_log, reserved
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.predict.trace.recurrent import is_recurrent
from advisor.predict.trace.step_trace import StepTrace
from advisor.predict.workspace.products import cublas_workspace_bytes, keeps_workspaces
from advisor.replaced import replaced
from advisor.training.batch import tree as batches

__all__ = ["on_cuda", "standing_for"]


@contextlib.contextmanager
def standing_for(device: CudaDevice) -> Generator[None, None, None]:
    """Let fake CPU tensors take the paths of a CUDA device; the whole step, from building the model, belongs inside."""
    gpu = AttentionGpu(compute_capability=device.compute_capability)
    move = batches.move

    def copied(batch: Any, device: torch.device) -> Any:
        """Every pass copies its batch to the device, although host and device are one here."""
        return batches.map_tensors(move(batch, device), torch.Tensor.clone)

    with as_cuda(gpu), optimizers_as_on_cuda(), replaced(batches, move=copied):
        yield


def on_cuda(
    prediction: MemoryPrediction,
    first: StepTrace,
    second: StepTrace,
    *,
    micro_batch: int,
    limit_bytes: int,
    device: CudaDevice,
) -> MemoryPrediction:
    """Complete a prediction with what the caching allocator would reserve, and with what is known to be missing.

    The traces are those that it was made of, on the device or standing for it.
    """
    notes = list(prediction.notes)
    if first.calls or second.calls:
        notes.append("What cuDNN takes inside of convolutions is not in it: a real run needs more.")
    if any(map(is_recurrent, (*first.operators, *second.operators))):
        notes.append("What cuDNN keeps of recurrent layers for the backward pass may be more than is predicted.")
    workspace_bytes = cublas_workspace_bytes(device) if keeps_workspaces() else 0
    log = allocation_log(first, second, device, workspace_bytes)
    if log is None:
        notes.append("Steps at two batches differ in more than sizes: what the allocator reserves is not predicted.")
        return msgspec.structs.replace(prediction, notes=tuple(notes))
    most = prediction.largest_batch(limit_bytes - len(log.products) * workspace_bytes)
    replays = tuple(
        reserved(
            log,
            micro_batch=micro_batch,
            expandable=expandable,
            limit_bytes=limit_bytes,
            at_most=0 if most == math.inf else math.floor(most),
        )
        for expandable in (False, True)
    )
    return msgspec.structs.replace(prediction, notes=tuple(notes), reserved=replays)
