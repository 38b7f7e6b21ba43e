"""Tensors that custom autograd functions keep as attributes (``ctx.x = ...``), where saved-tensor hooks miss them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

__all__ = ["hidden_bytes"]


def hidden_bytes(loss: torch.Tensor, known: Collection[int]) -> dict[str, int]:
    """Bytes of such tensors in the graph of a loss.

    Args:
        loss: The result of a forward pass.
        known: ``_cdata`` of the storages that do not count: those of parameters and buffers.

    Returns:
        Name of the function's node -> bytes; each storage counts once.
    """
    found: Counter[str] = Counter()
    counted = set(known)
    visited: set[Any] = set()
    open_nodes: list[Any] = [loss.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        open_nodes += [each for each, _ in node.next_functions]
        for value in getattr(node, "__dict__", {}).values():
            for tensor in value if isinstance(value, list | tuple) else [value]:
                if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                    continue
                storage = tensor.untyped_storage()
                if storage._cdata not in counted:
                    counted.add(storage._cdata)
                    found[node.name()] += storage.nbytes()
    return dict(found)
