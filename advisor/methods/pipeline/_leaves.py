"""What a tensor was computed from, as its graph tells."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterable
from typing import Any

import torch
from torch import nn

from advisor.training.saved.graph import graph_nodes

__all__ = ["frozen_shown", "is_made_from", "leaves_of_graph", "nodes_before"]


def leaves_of_graph(outputs: Iterable[torch.Tensor], *, without: frozenset[Any] = frozenset()) -> set[int]:
    """Identities of the leaf tensors that outputs were computed from; what lies beyond some nodes is left out."""
    outputs = list(outputs)
    found = {id(output) for output in outputs if output.is_leaf and output.requires_grad}
    nodes = graph_nodes(outputs, lambda node: node not in without)
    return found | {id(node.variable) for node in nodes if isinstance(getattr(node, "variable", None), torch.Tensor)}


def is_made_from(output: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a tensor is another one, which requires a gradient, or was computed from it."""
    if output is source:
        return True
    node = source.grad_fn
    if node is None:
        return id(source) in leaves_of_graph([output])
    return any(each is node for each in graph_nodes([output]))


def nodes_before(output: torch.Tensor) -> frozenset[Any]:
    """The node that made a tensor, to stop at; none for a leaf."""
    return frozenset() if output.grad_fn is None else frozenset({output.grad_fn})


@contextlib.contextmanager
def frozen_shown(model: nn.Module, *, without: Collection[int]) -> Generator[set[int]]:
    """Let graphs show where parameters are used that are not trained; yields the identities of those that are.

    Args:
        model: The model.
        without: Identities of parameters to leave as they are.
    """
    frozen = [
        one
        for one in model.parameters()
        if id(one) not in without and not one.requires_grad and one.is_floating_point() and not one.is_inference()
    ]
    trained = {id(one) for one in model.parameters() if one.requires_grad}
    try:
        for one in frozen:
            one.requires_grad_(True)
        yield trained
    finally:
        for one in frozen:
            one.requires_grad_(False)
