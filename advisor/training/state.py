"""The state of a training, as plain models and optimizers load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["load_state", "state_of"]


def state_of(training: Training) -> dict[str, Any]:
    """What :meth:`Training.state_dict` returns."""
    state = {
        "model": training.distribution.model_state(training.model),
        "optimizer": training.distribution.optimizer_state(training.optimizer),
    }
    if training.gradient_scaler is not None:
        state["scaler"] = training.gradient_scaler.state_dict()
    if training.world.rank == 0:
        for name, part in reversed(training.state_parts.items()):
            state["model"] = part.to_plain(state["model"])
            state[name] = part.state_dict()
    return state


def load_state(training: Training, state: Mapping[str, Any]) -> None:
    """Do what :meth:`Training.load_state_dict` does."""
    model_state: Mapping[str, Any] = state["model"]
    for name, part in training.state_parts.items():
        model_state = part.from_plain(model_state, state.get(name))
    training.distribution.load_model_state(training.model, model_state)
    training.distribution.load_optimizer_state(training.optimizer, state["optimizer"])
    _lay_out(training.optimizer)
    if training.gradient_scaler is not None and "scaler" in state:
        training.gradient_scaler.load_state_dict(state["scaler"])


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Lay state out in memory as the parameters that it is of, after it was loaded.

    A state may come from a training whose weights lay otherwise, and torch loads it as it lies. On a CPU fused
    optimizers then update each element with the state of another, without a word; on a GPU they fail. Optimizers that
    are not of torch.optim decide for themselves what lies where.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if type(value) is torch.Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
