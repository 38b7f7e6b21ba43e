"""Random numbers in compiled graphs: under a budget, torch's partitioner would draw them a second time.

It may recompute any operator in the backward pass, even dropout, whose second draw is another mask: the loss is right
and the gradients are silently wrong. Here operators that draw are marked as kept, and a backward graph that still draws
is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils.checkpoint import CheckpointPolicy

from advisor.methods.recompute._selective_checkpoint import dropout_probability

__all__ = ["KeepRandom", "drawing_operators"]


def drawing_operators(graph: torch.fx.Graph) -> list[str]:
    """Names of the operators of a graph that draw random numbers."""
    return [str(node.target) for node in _drawing(graph)]


class KeepRandom(CustomGraphPass):
    """A pass over a joint graph: the partitioner must keep the outputs of all operators that draw random numbers."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Mark the operators."""
        for node in _drawing(graph):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> Any:
        """What compiled code is cached under."""
        return "keep random numbers, version 1"


def _drawing(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and _draws(node)]


def _draws(node: torch.fx.Node) -> bool:
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    if any(argument.name == "philox_seed" for argument in operator._schema.arguments):
        return False  # The backward pass of attention on CUDA, which is given what the forward pass drew from.
    probability = dropout_probability(operator, node.args, node.kwargs)
    return probability is None or bool(probability)  # Attention is tagged whether or not it drops out.
