"""How a training is spread over processes: the part of a training that distributing methods replace.

The class here is for a single process. A distributing method replaces it by a subclass, which the training calls
without knowing which one it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from advisor.training.processes.cut import LeftPass
from advisor.training.processes.world import World

__all__ = ["Distribution", "LossModule", "plain_names", "share_parameters"]

_T = TypeVar("_T")
_WRAPPER_PREFIXES = ("_checkpoint_wrapped_module.",)


class Distribution:
    """One process: the model is whole, its gradients are complete after each backward pass."""

    def loss(
        self, model: torch.nn.Module, compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor], batch: Any
    ) -> torch.Tensor:
        """The loss of a micro-batch that is already on the device."""
        return compute_loss(model, batch)

    def call(self, model: torch.nn.Module, function: Callable[[torch.nn.Module], _T]) -> _T:
        """Return ``function(model)`` with the model ready to be called. With several processes, all must call it."""
        return function(model)

    def accumulating(self) -> contextlib.AbstractContextManager[None]:
        """Context for passes that are followed by more gradients in the same step."""
        return contextlib.nullcontext()

    def after_backward(self) -> None:
        """Called after every backward pass.

        Raises:
            MethodRefusedError: The pass broke an assumption of the distribution.
        """

    def complete_gradients(self) -> None:
        """Make the gradients those of the whole batch before they are used. May be called twice."""

    def after_step(self) -> None:
        """Called after the parameters were updated and the gradients dropped."""

    def clip_grad_norm(self, parameters: list[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
        """Clip the gradients to a total norm, and return the norm before."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def model_state(self, model: torch.nn.Module) -> dict[str, Any]:
        """The model's complete state under its plain names. With several processes, all call it and rank 0 gets it."""
        return plain_names(model.state_dict())

    def load_model_state(self, model: torch.nn.Module, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`model_state` returned on rank 0; every process gets all of it."""
        model.load_state_dict(state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The complete state of the optimizer. With several processes, all call it and rank 0 gets it."""
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`optimizer_state` returned on rank 0; every process gets all of it."""
        optimizer.load_state_dict(dict(state))


class LossModule(torch.nn.Module):
    """The user's model and its loss as one module that maps a batch to its loss.

    torch's wrappers wrap this module, so the model itself stays unmodified: a loss may call any of its methods, and its
    state keeps its names.
    """

    def __init__(self, model: torch.nn.Module, compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._compute_loss = compute_loss

    def forward(self, batch: Any, function: Callable[[torch.nn.Module], Any] | None = None) -> Any:
        """The loss of a batch, or ``function(model)``; what a pass has computed that goes on in another process."""
        try:
            return self._compute_loss(self.model, batch) if function is None else function(self.model)
        except LeftPass as left:
            left.__traceback__ = None  # The way through the user's frames keeps alive what they hold.
            hidden = left.hidden
        return hidden


def share_parameters(model: torch.nn.Module, world: World) -> None:
    """Give every process the parameters and buffers of rank 0: each may have initialized its own."""
    for tensor in (*model.parameters(), *model.buffers()):
        own = tensor.detach()
        sent = own.contiguous()
        dist.broadcast(sent, group_src=0, group=world.device_group)
        if sent is not own:
            own.copy_(sent)


def plain_names(state: dict[str, Any]) -> dict[str, Any]:
    """The state under the names that the model had before it was wrapped, with its metadata."""

    def plain(name: str) -> str:
        for prefix in _WRAPPER_PREFIXES:
            name = f"{name}.".replace(prefix, "").removesuffix(".")
        return name

    metadata = getattr(state, "_metadata", None)
    renamed = type(state)((plain(name), value) for name, value in state.items())
    if metadata is not None:
        renamed._metadata = type(metadata)((plain(name), value) for name, value in metadata.items())  # type: ignore[attr-defined]
    return renamed
