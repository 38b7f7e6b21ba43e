"""The state of a training, as plain models and optimizers load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from advisor.training.optimizer.fused_step import lay_out
from advisor.training.optimizer.loadable_state import require_loadable
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

    def save(self, world: World, *, model: bool = True, optimizer: bool = True) -> dict[str, Any]:
        """The complete state on rank 0, empty dictionaries on the others; every process must call it."""
        state = {}
        if model:
            state["model"] = self._whole_model(world)
        if optimizer:
            state["optimizer"] = self._whole_optimizer(world)
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if world.rank == 0:
            for name, part in reversed(self.parts.items()):
                if model:
                    state["model"] = part.to_plain(state["model"])
                state[name] = part.state_dict()
        return state

    def _whole_model(self, world: World) -> dict[str, Any]:
        model = self.distribution.model_state(self.model)
        for cut in reversed(self.cuts) if world.data.rank == 0 else ():
            model = cut.whole_model_state(model)
        return model

    def _whole_optimizer(self, world: World) -> dict[str, Any]:
        optimizer = self.distribution.optimizer_state(self.optimizer)
        for cut in reversed(self.cuts) if world.data.rank == 0 else ():
            optimizer = cut.whole_optimizer_state(optimizer, self.optimizer)
        return optimizer

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`save` gave rank 0; all of it, the model with the rest, or the optimizer alone.

        Raises:
            PolicyError: The optimizer's state is of another optimizer, or of other parameters.
        """
        optimizer_state = None
        if "model" in state:
            for name, part in self.parts.items():
                part.require_fitting(state.get(name))
        if "model" not in state or "optimizer" in state:
            optimizer_state = self._own_optimizer(state["optimizer"])  # What is refused leaves everything as it was.
        if "model" in state:
            self._load_model(state)
        if optimizer_state is not None:
            self.distribution.load_optimizer_state(self.optimizer, optimizer_state)
            lay_out(self.optimizer)

    def _load_model(self, state: Mapping[str, Any]) -> None:
        model_state: Mapping[str, Any] = state["model"]
        for name, part in self.parts.items():
            model_state = part.from_plain(model_state, state.get(name))
        for cut in self.cuts:
            model_state = cut.own_model_state(model_state)
        self.distribution.load_model_state(self.model, model_state)
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])

    def _own_optimizer(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        for cut in self.cuts:
            state = cut.own_optimizer_state(state, self.optimizer)
        require_parts_for(state, size=1)
        require_loadable(self.optimizer, state)
        return state
