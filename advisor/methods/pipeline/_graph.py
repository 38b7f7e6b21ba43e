"""What a tensor was computed from, as its graph tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["leaves_of_graph", "nodes_before"]


def leaves_of_graph(outputs: Iterable[torch.Tensor], *, without: frozenset[Any] = frozenset()) -> set[int]:
    """Identities of the leaf tensors that outputs were computed from.

    Args:
        outputs: Tensors.
        without: Nodes beyond which not to look.
    """
    return {id(leaf) for leaf in _leaves(outputs, without)}


def nodes_before(output: torch.Tensor) -> frozenset[Any]:
    """The node that made a tensor, to stop at; none for a leaf."""
    return frozenset() if output.grad_fn is None else frozenset({output.grad_fn})


def _leaves(outputs: Iterable[torch.Tensor], without: frozenset[Any]) -> Iterable[torch.Tensor]:
    outputs = list(outputs)
    yield from (each for each in outputs if each.is_leaf and each.requires_grad)
    open_nodes: list[Any] = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen: set[Any] = set(without)
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable
        open_nodes += [following for following, _ in node.next_functions]
