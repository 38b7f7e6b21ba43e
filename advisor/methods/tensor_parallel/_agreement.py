"""What ranks must have alike before a model is sliced among them, and when they train it."""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch._guards import detect_fake_mode

from advisor.errors import MethodRefusedError

__all__ = ["agree", "require_same_values"]

_TOLERANCE = 1e-3


def agree(model: nn.Module, described: str, group: dist.ProcessGroup, device: torch.device) -> None:
    """Give every rank the parameters, buffers and random numbers of the first, and compare plans and shapes.

    Ranks that had other ones would send other tensors, and wait for each other.

    Args:
        model: The whole model.
        described: The plan of this rank.
        group: The tensor-parallel group.
        device: From where the group sends.

    Raises:
        MethodRefusedError: The ranks have different plans or models.
    """
    if detect_fake_mode(list(model.parameters())) is not None:
        return  # Ranks of a trace are imaginary, and its tensors have no values.
    shapes = [(name, tuple(one.shape), one.dtype) for name, one in (*model.named_parameters(), *model.named_buffers())]
    own = float(zlib.crc32(f"{described} {shapes}".encode()))
    if not _alike([own], group, device):
        raise MethodRefusedError(
            "all ranks of a tensor-parallel group must find the same way to slice the same model, but they found "
            "different ones; build the same model on each and give each the same batch"
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


def require_same_values(values: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Check that all ranks compute with the same hidden states.

    Raises:
        MethodRefusedError: They have different ones; all ranks raise it.
    """
    total = values.detach().double()
    own = [float(values.numel()), float(total.sum()), float(total.abs().sum())]
    if not _alike(own, group, values.device, scale=own[2]):
        raise MethodRefusedError(
            "all ranks of a tensor-parallel group must be given the same samples, but their blocks begin with "
            "different ones; divide a batch by the number of models that train together (world.data), not by that of "
            "processes"
        )


def _alike(own: list[float], group: dist.ProcessGroup, device: torch.device, scale: float = 0.0) -> bool:
    """Whether numbers are the same on all ranks; to within rounding, relative to a scale."""
    bounds = torch.tensor([own, [-each for each in own]], dtype=torch.float64, device=device)
    dist.all_reduce(bounds, dist.ReduceOp.MAX, group=group)
    spread = (bounds[0] + bounds[1]).abs()
    return bool((spread <= _TOLERANCE * scale).all())


def _send(tensor: torch.Tensor, group: dist.ProcessGroup, device: torch.device) -> None:
    """Write to a tensor what the group's first rank has in it."""
    sent = tensor.to(device).contiguous()
    dist.broadcast(sent, group=group, group_src=0)
    if sent.data_ptr() != tensor.data_ptr():
        tensor.copy_(sent)
