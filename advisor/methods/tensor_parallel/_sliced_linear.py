"""The linear layers at both ends of a region, with a rank's part of the weight as a plain parameter."""

from __future__ import annotations

import torch
from torch import nn

from advisor.methods.tensor_parallel._block_plan import Slice
from advisor.methods.tensor_parallel._linear import as_products_read, product, sliced_dims
from advisor.methods.tensor_parallel._region_calls import RegionCalls
from advisor.methods.tensor_parallel._region_products import EntryProduct, ExitProduct
from advisor.methods.tensor_parallel._selective_contexts import hidden
from advisor.training.structure import is_transposed

__all__ = ["EntryLinear", "ExitLinear", "SlicedLinear"]


class SlicedLinear(nn.Module):
    """A rank's part of a linear layer; parameters keep their names and the order of their dimensions.

    Args:
        layer: The whole layer.
        weight: Slice of its weight.
        bias: Slice of its bias; ``None`` for a whole one.
        rank: Whose part this is.
        calls: The region.
    """

    def __init__(self, layer: nn.Module, weight: Slice, bias: Slice | None, rank: int, calls: RegionCalls) -> None:
        super().__init__()
        self.transposed = is_transposed(layer)
        self.training = layer.training
        self.calls = calls
        self.weight = _part(layer.weight, weight, rank)
        self.bias = None if layer.bias is None else _part(layer.bias, bias, rank)
        outputs, inputs = sliced_dims(self.transposed)
        # nn.TransformerEncoderLayer evaluates past its layers, with their weights, unless one of them has a hook.
        self.register_forward_pre_hook(_nothing)
        self.out_features, self.in_features = self.weight.size(outputs), self.weight.size(inputs)

    def extra_repr(self) -> str:
        """Its sizes on this rank."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class EntryLinear(SlicedLinear):
    """Computes a rank's part of the outputs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The own part of the outputs, for all tokens."""
        whole, entered = self.calls.enter(inputs, training=self.training)
        if entered is None or entered.own is None or not torch.is_grad_enabled():
            return product(whole, self.weight, self.bias, transposed=self.transposed)
        outputs: torch.Tensor = EntryProduct.apply(  # type: ignore[no-untyped-call]
            whole, entered.own, self.weight, self.bias, self.transposed, entered.again
        )
        return outputs


class ExitLinear(SlicedLinear):
    """Computes with a rank's part of the inputs; the ranks' results are summed, then the bias is added."""

    def __init__(self, layer: nn.Module, weight: Slice, bias: Slice | None, rank: int, calls: RegionCalls) -> None:
        super().__init__(layer, weight, bias, rank, calls)
        self.parked = calls.parked  # Where recomputation looks for generators.

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs: of all tokens, or of the own ones."""
        left_out = self.calls.is_sum_kept()
        with hidden():
            own = ExitProduct.apply(  # type: ignore[no-untyped-call]
                as_products_read(inputs), self.weight, self.transposed, left_out
            )
        outputs = self.calls.leave(own, training=self.training)
        return outputs if self.bias is None else outputs + self.bias.to(outputs.dtype)


def _nothing(module: nn.Module, args: object) -> None:
    """A hook that is only there to be seen."""


def _part(parameter: torch.Tensor | nn.Module, part: Slice | None, rank: int) -> nn.Parameter:
    assert isinstance(parameter, nn.Parameter)
    if part is None:
        return parameter
    return nn.Parameter(part.of(parameter.detach(), rank), requires_grad=parameter.requires_grad)
