"""The autograd graph of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

__all__ = ["graph_nodes"]


def graph_nodes(results: Iterable[Any], follow: Callable[[Any], bool] = lambda node: True) -> Iterator[Any]:
    """Each node of the graph of the tensors among some results, once; nodes that ``follow`` rejects are left out."""
    open_nodes = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
    visited: set[Any] = set()
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in visited and follow(node):
            visited.add(node)
            yield node
            open_nodes += [following for following, _ in node.next_functions]
