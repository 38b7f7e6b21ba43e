"""The user's functions and constants, once their file is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Workload"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The user's functions and constants, ready to call.

    Attributes:
        build_model: ``build_model(**size) -> nn.Module``; raises :class:`WorkloadError` if it returns anything else.
        make_batch: ``make_batch(batch_size, **size) -> pytree of CPU tensors``.
        compute_loss: ``compute_loss(model, batch) -> scalar``, or ``None`` for the default loss.
        build_optimizer: ``build_optimizer(params) -> Optimizer``, or ``None`` for AdamW.
        count_targets: ``count_targets(batch) -> number``: the weight of a micro-batch in the mean loss (tokens that
            are not padding, say), or ``None`` to weigh by samples.
        linear_head: Exposes the loss as a linear head and its inputs so that it can be computed in chunks, or
            ``None``.
        max_grad_norm: Gradient clipping (``MAX_GRAD_NORM``), or ``None``.
        batch_size: The user's own batch (``BATCH_SIZE``), or ``None``.
        blocks: Classes of the repeated blocks (``BLOCKS``); empty to find them automatically.
        sizes: Size argument -> values to try (``SIZES``).
        notes: Remarks for the user on how the workload was made.
    """

    build_model: Callable[..., torch.nn.Module]
    make_batch: Callable[..., Any]
    compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None
    build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None
    count_targets: Callable[[Any], Any] | None = None
    linear_head: Callable[..., Any] | None = None
    max_grad_norm: float | None = None
    batch_size: int | None = None
    blocks: tuple[type[torch.nn.Module], ...] = ()
    sizes: Mapping[str, tuple[int | float, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
