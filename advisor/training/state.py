"""The state of a training, as plain models and optimizers load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from advisor.training.processes.cut import Cut, require_parts_for
from advisor.training.processes.distribution import Distribution
from advisor.training.processes.world import World
from advisor.training.state_part import StatePart

__all__ = ["TrainingState"]


@dataclass(frozen=True)
class TrainingState:
    """Saves and loads the state of a training, with the parts that methods add by name."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    distribution: Distribution
    cuts: Sequence[Cut]
    scaler: torch.amp.GradScaler | None
    parts: dict[str, StatePart]

    def save(self, world: World) -> dict[str, Any]:
        """The complete state on rank 0, empty dictionaries on the others; every process must call it."""
        model = self.distribution.model_state(self.model)
        optimizer = self.distribution.optimizer_state(self.optimizer)
        if world.data.rank == 0:
            for cut in reversed(self.cuts):
                model = cut.whole_model_state(model)
                optimizer = cut.whole_optimizer_state(optimizer, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if world.rank == 0:
            for name, part in reversed(self.parts.items()):
                state["model"] = part.to_plain(state["model"])
                state[name] = part.state_dict()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`save` gave rank 0."""
        model_state: Mapping[str, Any] = state["model"]
        for name, part in self.parts.items():
            model_state = part.from_plain(model_state, state.get(name))
        optimizer_state: Mapping[str, Any] = state["optimizer"]
        for cut in self.cuts:
            model_state = cut.own_model_state(model_state)
            optimizer_state = cut.own_optimizer_state(optimizer_state, self.optimizer)
        require_parts_for(optimizer_state, size=1)
        self.distribution.load_model_state(self.model, model_state)
        self.distribution.load_optimizer_state(self.optimizer, optimizer_state)
        _lay_out(self.optimizer)
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the memory layout of its parameters; optimizers outside torch.optim choose their own.

    torch keeps the layout of the training that the state comes from. With another one, fused optimizers silently update
    each element with the state of another on a CPU, and fail on a GPU.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if type(value) is torch.Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
