"""What ranks must have alike before a model is sliced among them: parameters, random numbers and plans."""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._derivation import Derivation

__all__ = ["agree"]


def agree(model: nn.Module, derivation: Derivation, group: dist.ProcessGroup, device: torch.device) -> None:
    """Give every rank the parameters, buffers and random numbers of the first, and compare plans.

    Ranks that had other plans would send other tensors, and wait for each other.

    Args:
        model: The whole model.
        derivation: The plans of this rank.
        group: The tensor-parallel group.
        device: From where the group sends.

    Raises:
        MethodRefusedError: The ranks have different plans.
    """
    own = zlib.crc32(_described(derivation).encode())
    bounds = torch.tensor([own, -own], device=device)
    dist.all_reduce(bounds, dist.ReduceOp.MAX, group=group)
    if int(bounds[0]) != -int(bounds[1]):
        raise MethodRefusedError(
            "all ranks of a tensor-parallel group must find the same way to slice the model, but they found different "
            "ones; build the same model on each and give each the same batch"
        )
    for tensor in (*model.parameters(), *model.buffers()):
        _send(tensor.detach(), group, device)
    numbers = torch.get_rng_state()
    _send(numbers, group, device)
    torch.set_rng_state(numbers)
    if device.type == "cuda":
        numbers = torch.cuda.get_rng_state(device)
        _send(numbers, group, device)
        torch.cuda.set_rng_state(numbers, device)


def _described(derivation: Derivation) -> str:
    return repr(
        [
            [(region.entries, region.exit, region.sizes, region.partial, region.around) for region in plan.regions]
            for plan in derivation.plans
        ]
        + [derivation.runs, derivation.no_sequence == ""]
    )


def _send(tensor: torch.Tensor, group: dist.ProcessGroup, device: torch.device) -> None:
    """Write to a tensor what the group's first rank has in it."""
    sent = tensor.to(device).contiguous()
    dist.broadcast(sent, group=group, group_src=0)
    if sent.data_ptr() != tensor.data_ptr():
        tensor.copy_(sent)
