"""Parameters that several stages compute with: tied weights, and what all blocks take besides hidden states.

Each such stage has a copy, whose gradient lacks the part of the others. The parts are summed, so that all copies are
stepped alike; where an optimizer rounds by chance, the values of the first are sent to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._stage_ranks import PipelineRanks

__all__ = ["Copies"]


class Copies:
    """The ranks that compute with each parameter.

    Args:
        ranks: The ranks of the pipeline.
        users: For each rank, the plain names of the parameters that it computes with.
        trained: Plain names of the trained parameters, in an order that all ranks have.
    """

    def __init__(self, ranks: PipelineRanks, users: Sequence[set[str]], trained: Sequence[str]) -> None:
        self._ranks = ranks
        self._users = users
        self._shared = {name: found for name in trained if len(found := self.users(name)) > 1}

    def users(self, name: str) -> list[int]:
        """The ranks that compute with a parameter."""
        return [rank for rank, names in enumerate(self._users) if name in names]

    def owner(self, name: str) -> int:
        """The rank whose value of a parameter is the model's."""
        return next(iter(self.users(name)), 0)

    def count(self, name: str) -> int:
        """How many ranks have this parameter with the same gradient."""
        return max(1, len(self.users(name)))

    def sum_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Sum the gradients of shared parameters over the ranks that have them.

        Args:
            parameters: This rank's parameters by their plain names.

        Raises:
            MethodRefusedError: A stage used a parameter that it did not use when the pipeline was set up.
        """
        for name, parameter in parameters.items():
            if parameter.grad is not None and name not in self._users[self._ranks.rank]:
                raise MethodRefusedError(
                    f"a stage of a pipeline must use the same parameters in every step, but {name} has a gradient and "
                    "had no use in the first one; give the first step a batch that uses every branch"
                )
        for name, users in self._shared.items():
            if self._ranks.rank in users:
                self._sum(parameters[name], users)

    def agree(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Give every copy the values of the first: an optimizer may round by chance, or in another order.

        Args:
            parameters: This rank's parameters by their plain names.
        """
        ranks = self._ranks
        for name, users in self._shared.items():
            if ranks.rank not in users:
                continue
            values = parameters[name].detach()
            values = values.to_local() if isinstance(values, DTensor) else values
            if ranks.rank == users[0]:
                for other in users[1:]:
                    ranks.send(values, other)
            else:
                values.copy_(ranks.receive(torch.empty_like(values, memory_format=torch.contiguous_format), users[0]))

    def _sum(self, parameter: nn.Parameter, users: Sequence[int]) -> None:
        """The first of the ranks adds in their order, so that all have the same bits."""
        ranks, first = self._ranks, users[0]
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        local = (local.to_dense() if local.is_sparse else local).contiguous()
        if ranks.rank == first:
            for other in users[1:]:
                local = local + ranks.receive(torch.empty_like(local), other)
            for other in users[1:]:
                ranks.send(local, other)
        else:
            ranks.send(local, first)
            local = ranks.receive(torch.empty_like(local), first)
        if isinstance(gradient, DTensor):
            gradient.to_local().copy_(local)
            parameter.grad = gradient
        else:
            parameter.grad = local
