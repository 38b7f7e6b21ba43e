"""Linear layers as slicing sees them: ``nn.Linear``, and transformers' ``Conv1D``, whose weight is transposed."""

from __future__ import annotations

import torch
from torch import nn

from advisor.training.structure import is_transposed

__all__ = ["PRODUCTS", "as_products_read", "input_gradient", "is_linear", "product", "sliced_dims", "weight_gradient"]

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
"""What :func:`product` calls, without and with a bias."""


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer: no subclass, and nothing hangs on it that would see slices."""
    plain = type(module) is nn.Linear or is_transposed(module)
    return plain and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def sliced_dims(transposed: bool) -> tuple[int, int]:
    """Dimensions of a weight: that of its outputs and that of its inputs."""
    return (1, 0) if transposed else (0, 1)


def as_products_read(inputs: torch.Tensor) -> torch.Tensor:
    """A tensor in the number format in which autocast has products read it."""
    device = inputs.device.type
    return inputs.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else inputs


def product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, transposed: bool) -> torch.Tensor:
    """What a linear layer computes, by one of :data:`PRODUCTS`."""
    flat, matrix = inputs.reshape(-1, inputs.size(-1)), weight if transposed else weight.t()
    found = torch.mm(flat, matrix) if bias is None else torch.addmm(bias, flat, matrix)
    return found.view(*inputs.shape[:-1], found.size(-1))


def input_gradient(gradient: torch.Tensor, weight: torch.Tensor, *, transposed: bool) -> torch.Tensor:
    """The gradient of what a linear layer reads, from that of what it returns."""
    return gradient @ (weight.t() if transposed else weight).to(gradient.dtype)


def weight_gradient(
    gradient: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, *, transposed: bool
) -> torch.Tensor:
    """The gradient of its weight."""
    flat, read = gradient.flatten(0, -2), inputs.flatten(0, -2).to(gradient.dtype)
    return (read.t() @ flat if transposed else flat.t() @ read).to(weight.dtype)
