"""Let no dropout draw, where its masks would say nothing of what is compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["without_dropout"]

_DROPOUT_FUNCTIONS = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")


@contextlib.contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Disable dropout: its masks differ between a batch and its chunks, and say nothing about the loss."""
    changed: list[tuple[dict[str, Any], str, float]] = []
    for module in model.modules():
        is_dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
        for name, value in vars(module).items():
            if isinstance(value, float) and value > 0 and ("drop" in name.lower() or (is_dropout and name == "p")):
                changed.append((vars(module), name, value))
    for attributes, name, _ in changed:
        attributes[name] = 0.0
    try:
        with _functions_without_dropout():
            yield
    finally:
        for attributes, name, value in changed:
            attributes[name] = value


@contextlib.contextmanager
def _functions_without_dropout() -> Iterator[None]:
    """Let none of torch's dropout functions draw, whatever probability a model calls them with."""
    functions = torch._VF
    names = [one for kind in _DROPOUT_FUNCTIONS for one in (kind, f"{kind}_")]

    def identity(inputs: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return inputs.clone()

    def identity_in_place(inputs: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return inputs

    for name in names:
        setattr(functions, name, identity_in_place if name.endswith("_") else identity)
    try:
        yield
    finally:
        for name in names:
            delattr(functions, name)
