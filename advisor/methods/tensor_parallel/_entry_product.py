"""A linear layer on gathered tokens that keeps a rank's own ones, and gathers again for the weight's gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from advisor.methods.tensor_parallel._collectives import Ranks
from advisor.methods.tensor_parallel._linear import product

__all__ = ["EntryProduct", "GatheredAgain"]


class GatheredAgain:
    """Gathers once for all linear layers that read the same tokens in one call of a region.

    Args:
        ranks: The ranks that hold the parts.
        dim: Dimension of the tokens.
    """

    def __init__(self, ranks: Ranks, dim: int) -> None:
        self.users = 0
        self._ranks = ranks
        self._dim = dim
        self._whole: torch.Tensor | None = None
        self._left = 0

    def of(self, own: torch.Tensor) -> torch.Tensor:
        """All tokens, kept until the last user has asked."""
        whole = self._whole
        if whole is None:
            whole = self._ranks.gathered(own, self._dim)
            self._left = self.users
        self._left -= 1
        self._whole = whole if self._left > 0 else None
        return whole


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
        return product(whole, weight, bias, transposed=transposed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Gradients of all tokens, the weight and the bias."""
        own, weight = ctx.saved_tensors
        of_whole = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_whole = gradient @ (weight.t() if ctx.transposed else weight).to(gradient.dtype)
        flat = gradient.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            read = ctx.again.of(own).flatten(0, -2).to(gradient.dtype)
            of_weight = (read.t() @ flat if ctx.transposed else flat.t() @ read).to(weight.dtype)
        if ctx.needs_input_grad[3]:
            of_bias = flat.sum(0).to(weight.dtype)
        return of_whole, None, of_weight, of_bias, None, None
