"""What one process tells the others of a group: data that is more than a tensor."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["told"]


def told(value: Any, group: dist.ProcessGroup, device: torch.device, *, by: int) -> Any:
    """What one rank of a group says, on all of them.

    It is read as data (``weights_only``): a pickled object could run arbitrary code.

    Args:
        value: Tensors, numbers and text in containers; that of rank ``by`` counts.
        group: The processes; all call this.
        device: From where the group sends. Tensors arrive there.
        by: The rank that says it.
    """
    content = io.BytesIO()
    speaks = dist.get_rank(group) == by
    if speaks:
        torch.save(value, content)
    length = torch.tensor([content.getbuffer().nbytes], device=device)
    dist.broadcast(length, group=group, group_src=by)
    held = torch.empty(int(length), dtype=torch.uint8, device=device)
    if speaks:
        held.copy_(torch.frombuffer(bytearray(content.getbuffer()), dtype=torch.uint8))
    dist.broadcast(held, group=group, group_src=by)
    return value if speaks else torch.load(io.BytesIO(held.cpu().numpy().tobytes()), device, weights_only=True)
