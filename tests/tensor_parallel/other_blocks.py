"""What tensor parallelism makes of the chains of blocks on which pipelines are tried as well."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.pipeline_parallel import (
    other_chains,  # noqa: F401  # It adds its models.
    staged_models,
)

__all__ = ["SLICED", "loss_of"]

_USED = "something else than the next block uses what a block returns or computes"
_NEEDS = "needs all tokens"

SLICED: dict[str, tuple[str, str]] = {
    "returns weights": ("", ""),
    "uses weights": ("the loss reads them, or what they compute", _USED),
    "layer by layer": ("", _NEEDS),
    "between blocks": ("", ""),
    "writes": ("", ""),
    "notes": ("", _USED),
    "notes and uses": ("", _USED),
    "skips": ("", _USED),
    "starts anew": ("", ""),
    "returns a dict": ("or returns none", _USED),
    "keeps": ("", _USED),
    "in a dict": ("", ""),
    "in a sequence": ("", ""),
    "tied": ("", ""),
    "turned": ("a convolution is not sliced", "no linear layer of a block is sliced"),
    "normalizes after": ("", ""),
    "in parallel": ("", ""),
    "gated": ("", ""),
    "routes": ("", "it reads only some of the rank's own"),
    "remembers": ("", _NEEDS),
    "transformers GPT-J": ("", ""),
    "transformers Bloom": ("", _NEEDS),
    "transformers Falcon, alibi": ("a FalconLinear is no plain nn.Linear", "no linear layer of a block is sliced"),
}
"""Model -> why its blocks are not sliced (empty: they are), and why their tokens are not divided besides."""


def loss_of(kind: str) -> Callable[[nn.Module], torch.Tensor]:
    """The loss of a model on a batch of its own."""
    loss, batch = staged_models.loss_of(kind), staged_models.batch_of(kind)
    return lambda model: loss(model, batch)
