"""Linear layers as slicing sees them: ``nn.Linear``, and transformers' ``Conv1D``, whose weight is transposed."""

from __future__ import annotations

import torch
from torch import nn

from advisor.training.structure import is_transposed

__all__ = ["is_linear", "product", "sliced_dims"]


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer: no subclass, and nothing hangs on it that would see slices."""
    plain = type(module) is nn.Linear or is_transposed(module)
    return plain and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def sliced_dims(transposed: bool) -> tuple[int, int]:
    """Dimensions of a weight: that of its outputs and that of its inputs."""
    return (1, 0) if transposed else (0, 1)


def product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, transposed: bool) -> torch.Tensor:
    """What a linear layer computes."""
    return nn.functional.linear(inputs, weight.t() if transposed else weight, bias)
