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
    shared: dict[int, Any] = {id(parameter): parameter for parameter in block.parameters()}
    for module in block.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:  # of an earlier pass
                shared[id(value)] = value.detach().clone()
    copied = copy.deepcopy(block, shared)
    return copied.eval()


def precise(block: nn.Module, call: Call) -> tuple[nn.Module, Call]:
    """A block and its call on the CPU, in numbers of 32 bits where they have 16: sums in these differ too much.

    Both as they are where they are such already, or where the block's code needs the shorter format.
    """
    parameters = list(block.parameters())
    short = any(parameter.dtype in _SHORT for parameter in parameters)
    if not short and all(parameter.device.type == "cpu" for parameter in parameters):
        return block, call
    here = copy.deepcopy(block).cpu()
    hidden, args, kwargs = torch.utils._pytree.tree_map(_on_cpu, (call.hidden, call.args, call.kwargs))
    called = dataclasses.replace(call, hidden=hidden, args=args, kwargs=kwargs)
    if not short:
        return here, called
    longer = copy.deepcopy(here).float()
    hidden, args, kwargs = torch.utils._pytree.tree_map(_longer, (hidden, args, kwargs))
    longer_call = dataclasses.replace(call, hidden=hidden, args=args, kwargs=kwargs)
    try:
        longer_call.run(longer, hidden)
    except Exception:  # The user's code.
        return here, called
    return longer, longer_call


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _longer(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _SHORT else value
