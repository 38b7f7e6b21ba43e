"""A frozen linear layer that holds its weight in 4 bits.

bitsandbytes has the rounding and its kernels. Its own layer has a special kind of parameter, which cannot be fake, so
its memory could not be predicted. This one calls the same functions on plain tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from bitsandbytes import functional
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from advisor.training.structure import all_places, is_transposed, put_in_places

__all__ = ["FourBitLinear", "quantize_layers"]


def quantize_layers(model: nn.Module, names: Sequence[str]) -> None:
    """Replace linear layers of ``model``, in place, by ones that hold their weight in 4 bits.

    transformers' ``Conv1D`` becomes one too.
    """
    places, replaced = all_places(model, names), {}
    for name in names:
        layer: Any = model.get_submodule(name)
        transposed = is_transposed(layer)
        weight = layer.weight.detach()
        if layer.bias is not None:
            layer.bias.requires_grad_(False)
        new = FourBitLinear(weight.t() if transposed else weight, layer.bias, transposed=transposed)
        replaced[name] = new.train(layer.training)
    put_in_places(model, replaced, places)


class FourBitLinear(nn.Linear):
    """A frozen linear layer whose weight is rounded to NF4 in blocks, the scales of the blocks to 8 bits.

    The whole weight exists only while it is computed with, in the forward and again in the backward pass.

    Args:
        weight: (outputs, inputs); left as it is.
        bias: The layer's frozen parameter, or ``None``.
        transposed: Whether the layer that it replaces holds its weight as (inputs, outputs).
    """

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None, *, transposed: bool) -> None:
        outputs, inputs = weight.shape
        super().__init__(inputs, outputs, bias=False, device="meta")
        self.transposed = transposed
        self.bias = bias  # type: ignore[assignment]
        self.weight = nn.Parameter(self.hold(weight), requires_grad=False)

    def hold(self, weight: torch.Tensor) -> torch.Tensor:
        """Round a weight: its 4-bit numbers, two to a byte, while the layer takes its scales."""
        packed: torch.Tensor
        packed, scales = functional.quantize_4bit(weight.detach().contiguous(), quant_type="nf4")
        # As its compress_statistics=True does, but that keeps a table for the whole process, even a fake one.
        table = torch.tensor(_table(), device=weight.device)
        scales.offset = scales.absmax.mean()
        scales.absmax, scales.state2 = functional.quantize_blockwise(
            scales.absmax - scales.offset, table, blocksize=256
        )
        scales.nested = True
        self._scales = scales
        self._show_scales()
        return packed

    def whole(self) -> torch.Tensor:
        """The rounded weight."""
        whole: torch.Tensor = functional.dequantize_4bit(self.weight.detach(), self._scales)
        return whole

    def tensors(self) -> dict[str, torch.Tensor]:
        """The 4-bit numbers, the scales of their blocks, and what these are scaled and shifted by."""
        return {"weight": self.weight.detach(), **dict(self.named_buffers())}

    def _show_scales(self) -> None:
        """Make them buffers, so that they are counted and shared between devices, but not part of a state."""
        scales = self._scales
        for name, tensor in (("scales", scales.absmax), ("offset", scales.offset), ("outer", scales.state2.absmax)):
            self.register_buffer(name, tensor, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> FourBitLinear:
        """Move the scales too; another float format is only for inputs and bias."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._scales.to(self.weight.device)
        self._show_scales()
        return self

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The layer's output."""
        output: torch.Tensor = _FrozenLinear.apply(input, self)  # type: ignore[no-untyped-call]
        return output


@functools.cache
def _table() -> list[float]:
    """The 256 numbers that 8 bits of a scale stand for."""
    with _disable_current_modes():  # It reads values, which fake tensors do not have.
        table: list[float] = functional.create_dynamic_map().tolist()
    return table


class _FrozenLinear(torch.autograd.Function):
    """A linear layer that keeps nothing for the backward pass, which only passes the gradient on."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: FourBitLinear) -> torch.Tensor:
        ctx.layer = layer
        ctx.dtype = inputs.dtype
        # Inputs decide the format: the weight shows none, and the bias may have been shortened.
        bias = None if layer.bias is None else layer.bias.to(inputs.dtype)
        return nn.functional.linear(inputs, layer.whole().to(inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (gradient @ ctx.layer.whole().to(gradient.dtype)).to(ctx.dtype), None
