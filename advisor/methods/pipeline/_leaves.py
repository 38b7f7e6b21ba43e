"""What a tensor was computed from, as its graph tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from advisor.training.saved.graph import graph_nodes

__all__ = ["leaves_of_graph", "nodes_before"]


def leaves_of_graph(outputs: Iterable[torch.Tensor], *, without: frozenset[Any] = frozenset()) -> set[int]:
    """Identities of the leaf tensors that outputs were computed from; what lies beyond some nodes is left out."""
    outputs = list(outputs)
    found = {id(output) for output in outputs if output.is_leaf and output.requires_grad}
    nodes = graph_nodes(outputs, lambda node: node not in without)
    return found | {id(node.variable) for node in nodes if isinstance(getattr(node, "variable", None), torch.Tensor)}


def nodes_before(output: torch.Tensor) -> frozenset[Any]:
    """The node that made a tensor, to stop at; none for a leaf."""
    return frozenset() if output.grad_fn is None else frozenset({output.grad_fn})
