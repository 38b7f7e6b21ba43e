"""Checkpoints of other trainers: the model under its plain names, and beside it what else a training resumes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from advisor.errors import PolicyError
from advisor.training.training import Training

__all__ = ["load_model", "parts_of", "read_parts", "read_weights", "write_parts"]

PARTS = "momadvise_state.pt"
"""File beside a checkpoint's model: the state of methods, as :meth:`Training.state_dict` names it."""

_LOADED_ELSEWHERE = ("model", "optimizer")


def parts_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a training's state has besides model and optimizer."""
    return {name: value for name, value in state.items() if name not in _LOADED_ELSEWHERE}


def write_parts(state: Mapping[str, Any], folder: Path) -> None:
    """Write what a training's state has besides model and optimizer, if there is anything."""
    if parts := parts_of(state):
        torch.save(parts, folder / PARTS)


def read_parts(folder: Path) -> dict[str, Any]:
    """What :func:`write_parts` wrote; nothing where it wrote nothing, as for a checkpoint of plain training."""
    path = folder / PARTS
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else {}


def read_weights(folder: Path, name: str = "model") -> dict[str, torch.Tensor] | None:
    """The weights in a folder, in one file or several; ``None`` if there are none."""
    index = folder / f"{name}.safetensors.index.json"
    files = [f"{name}.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    if not (folder / files[0]).exists():
        return None
    return {key: tensor for file in files for key, tensor in load_file(folder / file).items()}


def load_model(training: Training, weights: Mapping[str, torch.Tensor], parts: Mapping[str, Any]) -> None:
    """Load plain weights, and the parts saved with them.

    Raises:
        PolicyError: The weights are those of another model.
    """
    state = {**weights, **_shared(training.model, weights)}
    try:
        training.load_state_dict({"model": state, **parts})
    except RuntimeError as error:
        raise PolicyError(f"A checkpoint must be of the model that the policy was applied to, but {error}") from error


def _shared(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that a file has once and the model under several names, under the names that are missing."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        name: weights[known]
        for same in names.values()
        for known in [next((name for name in same if name in weights), None)]
        if known is not None
        for name in same
        if name not in weights
    }
