"""A model that several processes hold together: each has a part of it, along one axis of the mesh.

A method that cuts the model adds one :class:`Cut` to ``Training.cuts``; the training calls it without knowing which one
it is. Copies of the same part along the data axis are the business of ``Training.distribution``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from advisor.errors import MethodRefusedError
from advisor.training.processes.world import World

__all__ = ["IN_PARTS", "Cut", "LeftPass", "clip_across_cuts", "require_parts_for", "share_overflow"]

IN_PARTS = "parts of tensor-parallel devices"
"""Marks what an optimizer keeps of a parameter in a form that cannot be joined: the processes' parts, in order."""

_T = TypeVar("_T")


class LeftPass(BaseException):
    """Ends a forward pass that goes on in another process; no error, so that no ``except Exception`` stops it.

    Args:
        hidden: What this process computed.
    """

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__("the forward pass goes on in another process")
        self.hidden = hidden


class Cut:
    """The parts of a model along one axis.

    Args:
        world: The processes along the axis.

    Attributes:
        draws_own: Whether each of its processes draws random numbers of its own in all blocks.
    """

    draws_own = False

    def __init__(self, world: World) -> None:
        self.world = world

    def copies(self, parameter: torch.nn.Parameter) -> int:
        """How many processes of the axis hold this parameter with the same values and gradient."""
        raise NotImplementedError

    def complete_gradients(self) -> None:
        """Make the gradients those of the whole model; called once the passes of a step have ended, perhaps twice."""

    def let_go(self, model: torch.nn.Module) -> None:
        """Forget the modules that are no longer in the model, because another cut has left them to other processes."""

    def evaluation(self, function: Callable[[torch.nn.Module], _T]) -> Callable[[torch.nn.Module], _T]:
        """The function that evaluates the whole model, from one that evaluates a plain model."""
        return function

    def whole_model_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The axis's parts together, under plain names, on its rank 0 (empty on others); every process calls it.

        Gradients are gathered in the same way, so ``state`` may have trainable parameters only.
        """
        raise NotImplementedError

    def own_model_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """This process's part of a whole state; the inverse of :meth:`whole_model_state`."""
        raise NotImplementedError

    def whole_optimizer_state(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The state of ``optimizer`` for the whole model, in the plain optimizer's format, on rank 0 of the axis."""
        raise NotImplementedError

    def own_optimizer_state(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """This process's part of an optimizer's state; the inverse of :meth:`whole_optimizer_state`."""
        raise NotImplementedError


def require_parts_for(state: Mapping[str, Any], size: int) -> None:
    """Require that what could not be joined is loaded by as many processes as it was saved by.

    Args:
        state: An optimizer's state.
        size: How many hold a parameter together here.

    Raises:
        MethodRefusedError: It was saved by another number.
    """
    for entries in state.get("state", {}).values():
        for value in entries.values() if isinstance(entries, Mapping) else ():
            if isinstance(value, dict) and IN_PARTS in value and len(value[IN_PARTS]) != size:
                raise MethodRefusedError(
                    "the optimizer keeps its state in another form than that of the parameters (coded in 8 bits, for "
                    f"example), which was saved in the parts of {len(value[IN_PARTS])} tensor-parallel devices and is "
                    f"to be loaded by {size}; load it on as many, or load state['model'] into the model before the "
                    "policy is applied, and let the optimizer start anew"
                )


def clip_across_cuts(
    parameters: list[torch.nn.Parameter], max_norm: float, cuts: Sequence[Cut], factor: torch.Tensor | None = None
) -> torch.Tensor:
    """Clip the gradients to a total norm over all parts of the model, and return the norm before.

    Each process sums the squares of its gradients, a gradient that others hold as well counting by its share, and the
    sums are added along every axis.

    Args:
        parameters: This process's parameters.
        max_norm: Largest total 2-norm.
        cuts: The axes that divide the model.
        factor: What gradients are to be multiplied by to get the true ones; default: one.
    """
    squares = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float32)
        copies = math.prod(cut.copies(parameter) for cut in cuts)
        squares.append((norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2 / copies)
    square = float(torch.stack(squares).sum()) if squares else 0.0
    for cut in cuts:
        square = cut.world.total(square)
    total = torch.tensor(math.sqrt(square), device=squares[0].device if squares else None)
    if factor is not None:
        total = total * factor.to(total.device)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return total


def share_overflow(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, cuts: Sequence[Cut]) -> None:
    """Let a step be left out on every process that holds a part of the model if a gradient overflowed on one of them.

    Args:
        scaler: It has unscaled the optimizer's gradients.
        optimizer: The optimizer.
        cuts: The axes that divide the model.
    """
    for found in scaler._found_inf_per_device(optimizer).values():
        for cut in cuts:
            dist.all_reduce(found, dist.ReduceOp.MAX, group=cut.world.device_group)
