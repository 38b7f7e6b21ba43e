"""A copy of a block to try things on: its parameters are the block's own, everything else is copied."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn

from advisor.methods.tensor_parallel._block_calls import Call

__all__ = ["precise", "replica"]

_SHORT = (torch.bfloat16, torch.float16)


def replica(block: nn.Module) -> nn.Module:
    """A copy in evaluation mode that shares the parameters, which nothing may write to."""
    shared = {id(parameter): parameter for parameter in block.parameters()}
    copied = copy.deepcopy(block, shared)
    return copied.eval()


def precise(block: nn.Module, call: Call) -> tuple[nn.Module, Call]:
    """A block and its call in numbers of 32 bits where they have 16: sums in these differ too much to compare.

    Both as they are, where the block's code needs the shorter format.
    """
    if not any(parameter.dtype in _SHORT for parameter in block.parameters()):
        return block, call
    longer = copy.deepcopy(block).float()
    hidden, args, kwargs = torch.utils._pytree.tree_map(_longer, (call.hidden, call.args, call.kwargs))
    called = dataclasses.replace(call, hidden=hidden, args=args, kwargs=kwargs)
    try:
        called.run(longer, hidden)
    except Exception:  # The user's code.
        return block, call
    return longer, called


def _longer(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _SHORT else value
