"""The products at both ends of a region, as functions with a gradient.

An entry keeps a rank's own tokens and gathers again for its weight's gradient. An exit is left out of a recomputation
in which its sum over the ranks is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from advisor.methods.tensor_parallel._collectives import Ranks
from advisor.methods.tensor_parallel._linear import PRODUCTS, input_gradient, product, sliced_dims, weight_gradient
from advisor.methods.tensor_parallel._selective_contexts import hidden, is_kept

__all__ = ["EntryProduct", "ExitProduct", "GatheredAgain"]


class GatheredAgain:
    """Gathers once for all linear layers that read the same tokens in one call of a region.

    Args:
        ranks: The ranks that hold the parts.
        dim: Dimension of the tokens.
        left_out: Whether they were not gathered, because the products are kept.
    """

    def __init__(self, ranks: Ranks, dim: int, *, left_out: bool) -> None:
        self.users = 0
        self.left_out = left_out
        self._ranks = ranks
        self._dim = dim
        self._whole: torch.Tensor | None = None
        self._left = 0

    def of(self, own: torch.Tensor) -> torch.Tensor:
        """All tokens, kept until the last user has asked."""
        whole = self._whole
        if whole is None:
            whole = self.now(own)
            self._left = self.users
        self._left -= 1
        self._whole = whole if self._left > 0 else None
        return whole

    def now(self, own: torch.Tensor) -> torch.Tensor:
        """All tokens."""
        return self._ranks.gathered(own, self._dim)


class EntryProduct(torch.autograd.Function):
    """``(all tokens, own tokens, weight, bias) -> product with all tokens``; the own ones are what is saved."""

    @staticmethod
    def forward(
        ctx: Any,
        whole: torch.Tensor,
        own: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        transposed: bool,
        again: GatheredAgain,
    ) -> torch.Tensor:
        """The product."""
        ctx.transposed, ctx.again = transposed, again
        ctx.save_for_backward(own if weight.requires_grad else None, weight)
        again.users += int(weight.requires_grad)
        if again.left_out and not is_kept(PRODUCTS[bias is not None]):
            with hidden():
                whole = again.now(own).view_as(whole)
        return product(whole, weight, bias, transposed=transposed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Gradients of all tokens, the weight and the bias."""
        own, weight = ctx.saved_tensors
        of_whole = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_whole = input_gradient(gradient, weight, transposed=ctx.transposed)
        if ctx.needs_input_grad[2]:
            of_weight = weight_gradient(gradient, ctx.again.of(own), weight, transposed=ctx.transposed)
        if ctx.needs_input_grad[3]:
            of_bias = gradient.flatten(0, -2).sum(0).to(weight.dtype)
        return of_whole, None, of_weight, of_bias, None, None


class ExitProduct(torch.autograd.Function):
    """``(inputs, weight) -> product``; any values at all where it is left out."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, transposed: bool, left_out: bool) -> torch.Tensor:
        """The product."""
        ctx.transposed = transposed
        ctx.save_for_backward(inputs if weight.requires_grad else None, weight)
        if left_out:
            return inputs.new_empty(*inputs.shape[:-1], weight.size(sliced_dims(transposed)[0]))
        return product(inputs, weight, None, transposed=transposed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Gradients of the inputs and the weight."""
        inputs, weight = ctx.saved_tensors
        of_inputs = of_weight = None
        if ctx.needs_input_grad[0]:
            of_inputs = input_gradient(gradient, weight, transposed=ctx.transposed)
        if ctx.needs_input_grad[1]:
            of_weight = weight_gradient(gradient, inputs, weight, transposed=ctx.transposed)
        return of_inputs, of_weight, None, None
