"""What cuBLAS holds of the allocator's memory: no tensor, but in every peak that the allocator counts.

Each thread that multiplies has its own handle with a workspace: on CUDA the forward pass multiplies in the caller's
thread and the backward pass in autograd's. From Hopper on a workspace has 32 MiB.

Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["held_workspace_bytes"]


def held_workspace_bytes(device: torch.device, cuda: Any = torch.cuda, library: Any = torch._C) -> int:
    """Bytes of all workspaces of this process; it has them again afterwards, perhaps in other places.

    Args:
        device: A CUDA device, on which nothing runs.
        cuda: ``torch.cuda``, or an object with the same functions.
        library: ``torch._C``; likewise.
    """
    clear = getattr(library, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        return 0
    before = int(cuda.memory_allocated(device))
    clear()
    held = before - int(cuda.memory_allocated(device))
    if held > 0:
        # At once: the next step would count them among its activations.
        _multiply(device)
    return held


def _multiply(device: torch.device) -> None:
    """In this thread, and in the one of autograd."""
    matrix = torch.ones(16, 16, device=device, requires_grad=True)
    torch.autograd.grad((matrix @ matrix).sum(), matrix)
