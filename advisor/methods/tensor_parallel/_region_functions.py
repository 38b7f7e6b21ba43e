"""Where hidden states enter and leave a region, as functions with a gradient: each communicates in one direction."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from advisor.methods.tensor_parallel._collectives import Ranks

__all__ = ["Collect", "Enter", "Gather", "Leave", "ScatterSum", "Split"]


class Enter(torch.autograd.Function):
    """As it is; the gradient is summed over the ranks (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        """As it is."""
        ctx.ranks = ranks
        return hidden.view_as(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Summed."""
        return ctx.ranks.summed(gradient), None


class Leave(torch.autograd.Function):
    """Summed over the ranks; the gradient as it is (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        """Summed."""
        return ranks.summed(own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """As it is."""
        return gradient, None


class Gather(torch.autograd.Function):
    """All tokens of the ranks' parts, any values if left out; the gradient is summed, each rank gets its part's."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, dim: int, ranks: Ranks, left_out: bool = False) -> torch.Tensor:
        """Gathered."""
        ctx.dim, ctx.ranks = dim, ranks
        if left_out:
            return own.new_empty([*own.shape[:dim], own.size(dim) * ranks.size, *own.shape[dim + 1 :]])
        return ranks.gathered(own, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Summed and scattered."""
        return ctx.ranks.scattered_sum(gradient, ctx.dim), None, None, None


class ScatterSum(torch.autograd.Function):
    """A rank's part of the sum over the ranks; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
        """Summed and scattered."""
        ctx.dim, ctx.ranks = dim, ranks
        return ranks.scattered_sum(own, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Gathered."""
        return ctx.ranks.gathered(gradient, ctx.dim), None, None


class Split(torch.autograd.Function):
    """A rank's own tokens of what all ranks hold; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
        """The own part."""
        ctx.dim, ctx.ranks = dim, ranks
        return ranks.part(whole, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Gathered."""
        return ctx.ranks.gathered(gradient, ctx.dim), None, None


class Collect(torch.autograd.Function):
    """All tokens, with which every rank goes on alike; the gradient is that of the own tokens."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
        """Gathered."""
        ctx.dim, ctx.ranks = dim, ranks
        return ranks.gathered(own, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """The own part."""
        return ctx.ranks.part(gradient, ctx.dim), None, None
