"""The state of a training, as plain models and optimizers load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advisor.training.cut import Cut
from advisor.training.distribution import Distribution
from advisor.training.state_part import StatePart
from advisor.training.world import World

__all__ = ["TrainingState"]


class TrainingState:
    """Saves and loads the state of a training.

    Args:
        model: The model, as methods left it.
        optimizer: Its optimizer.
        distribution: How both are spread over the data axis.
        cuts: The axes that divide the model.
        scaler: The loss scaler, or ``None``.
        parts: Name -> state added by a method.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        distribution: Distribution,
        cuts: Sequence[Cut],
        scaler: torch.amp.GradScaler | None,
        parts: dict[str, StatePart],
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._distribution = distribution
        self._cuts = cuts
        self._scaler = scaler
        self._parts = parts

    def save(self, world: World) -> dict[str, Any]:
        """The complete state on rank 0, empty dictionaries on the others; every process must call it."""
        model = self._distribution.model_state(self._model)
        optimizer = self._distribution.optimizer_state(self._optimizer)
        if world.data.rank == 0:
            for cut in reversed(self._cuts):
                model = cut.whole_model_state(model)
                optimizer = cut.whole_optimizer_state(optimizer, self._optimizer)
        state = {"model": model, "optimizer": optimizer}
        if self._scaler is not None:
            state["scaler"] = self._scaler.state_dict()
        if world.rank == 0:
            for name, part in reversed(self._parts.items()):
                state["model"] = part.to_plain(state["model"])
                state[name] = part.state_dict()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`save` gave rank 0."""
        model_state: Mapping[str, Any] = state["model"]
        for name, part in self._parts.items():
            model_state = part.from_plain(model_state, state.get(name))
        optimizer_state: Mapping[str, Any] = state["optimizer"]
        for cut in self._cuts:
            model_state = cut.own_model_state(model_state)
            optimizer_state = cut.own_optimizer_state(optimizer_state, self._optimizer)
        self._distribution.load_model_state(self._model, model_state)
        self._distribution.load_optimizer_state(self._optimizer, optimizer_state)
        _lay_out(self._optimizer)
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the memory layout of its parameters.

    A state may come from a training with another layout of weights, and torch keeps that layout. On a CPU, fused
    optimizers then silently update each element with the state of another; on a GPU they fail. Optimizers outside
    torch.optim choose their own layout.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if type(value) is torch.Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
