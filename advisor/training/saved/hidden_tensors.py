"""Tensors that custom autograd functions keep as attributes (``ctx.x = ...``), where saved-tensor hooks miss them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import torch

from advisor.training.graph import graph_nodes

__all__ = ["hidden_bytes"]


def hidden_bytes(loss: torch.Tensor, known: Collection[int]) -> dict[str, int]:
    """Bytes of such tensors in the graph of a loss, by the name of the function's node; each storage counts once.

    Storages whose ``_cdata`` is ``known`` do not count: those of parameters and buffers.
    """
    found: Counter[str] = Counter()
    counted = set(known)
    for node in graph_nodes([loss]):
        for value in getattr(node, "__dict__", {}).values():
            for tensor in value if isinstance(value, list | tuple) else [value]:
                if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                    continue
                storage = tensor.untyped_storage()
                if storage._cdata not in counted:
                    counted.add(storage._cdata)
                    found[node.name()] += storage.nbytes()
    return dict(found)
