"""Loads what CUDA loads at its first use, so that the first trial of a process does not seem to leak memory.

Contexts, cuBLAS, cuDNN and the kernels themselves are loaded lazily and stay: hundreds of megabytes of host memory.
"""

from __future__ import annotations

import torch

__all__ = ["use_libraries", "warm_up"]

_warm: set[torch.device] = set()


def warm_up(device: torch.device) -> None:
    """Use the libraries of a CUDA device once per process; on a CPU nothing is loaded late that is large."""
    if device.type != "cuda" or device in _warm:
        return
    use_libraries(device)
    torch.cuda.synchronize(device)
    _warm.add(device)


def use_libraries(device: torch.device) -> None:
    """Multiply matrices and go through a convolution forward and backward, leaving nothing behind."""
    # Not from the global generators: what a trial draws must not depend on whether it is the first of its process.
    formats = [torch.float32]
    if device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        formats.append(torch.bfloat16)
    for dtype in formats:
        matrix = torch.ones(64, 64, dtype=dtype, device=device)
        (matrix @ matrix).sum().item()
    images = torch.ones(2, 8, 16, 16, device=device, requires_grad=True)
    weight = torch.ones(8, 8, 3, 3, device=device, requires_grad=True)
    output = torch.nn.functional.conv2d(images, weight, padding=1)
    torch.autograd.grad(output.sum(), (images, weight))
