"""A copy of a block to try things on: its parameters are the block's own, everything else is copied."""

from __future__ import annotations

import copy

from torch import nn

__all__ = ["replica"]


def replica(block: nn.Module) -> nn.Module:
    """A copy in evaluation mode that shares the parameters, which nothing may write to."""
    shared = {id(parameter): parameter for parameter in block.parameters()}
    copied = copy.deepcopy(block, shared)
    return copied.eval()
