"""A linear layer whose result is summed over the ranks, and left out of a recomputation in which the sum is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from advisor.methods.tensor_parallel._linear import input_gradient, product, sliced_dims, weight_gradient

__all__ = ["ExitProduct"]


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
