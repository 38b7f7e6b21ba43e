"""The cross entropy of an output layer whose classes are shared by ranks: none ever holds the logits of all."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from advisor.methods.tensor_parallel._collectives import Ranks
from advisor.methods.tensor_parallel._linear import product
from advisor.methods.tensor_parallel._region_functions import Enter
from advisor.training.batch.tree import IGNORED_TARGET

__all__ = ["vocabulary_loss"]


def vocabulary_loss(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, ranks: Ranks
) -> torch.Tensor:
    """Mean cross entropy of an output layer over the targets that are not -100; the same on every rank.

    Args:
        hidden: What the output layer reads, the same on every rank.
        weight: This rank's classes.
        bias: This rank's part, or ``None``.
        targets: Numbers among all classes.
        ranks: Among whom the classes are shared, in order.
    """
    flat = targets.reshape(-1).to(hidden.device)
    entered = Enter.apply(hidden.reshape(-1, hidden.size(-1)), ranks)  # type: ignore[no-untyped-call]
    logits = product(entered, weight, bias, transposed=False).float()
    losses = _CrossEntropy.apply(logits, flat - ranks.rank * weight.size(0), ranks)  # type: ignore[no-untyped-call]
    counted = flat != IGNORED_TARGET
    total: torch.Tensor = torch.where(counted, losses, 0.0).sum() / counted.sum()
    return total


class _CrossEntropy(torch.autograd.Function):
    """``(logits of own classes, targets counted from the first own class) -> loss of each target``."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        largest = ranks.largest(logits.amax(-1))
        shares = (logits - largest[:, None]).exp_()
        own = (targets >= 0) & (targets < logits.size(-1))
        indices = targets.where(own, 0)[:, None]
        picked = logits.gather(-1, indices)[:, 0].where(own, 0.0)
        total, picked = ranks.summed(torch.stack([shares.sum(-1), picked]))
        ctx.save_for_backward(shares.div_(total[:, None]), own, indices)
        losses: torch.Tensor = total.log() + largest - picked
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        shares, own, indices = ctx.saved_tensors
        of_logits = shares * gradient[:, None]
        of_logits.scatter_add_(-1, indices, -gradient.where(own, 0.0)[:, None])
        return of_logits, None, None
