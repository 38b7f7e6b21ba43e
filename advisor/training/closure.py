"""Optimizers whose step computes the loss itself, such as LBFGS, take no gradients that are there."""

from __future__ import annotations

import inspect

import torch

from advisor.errors import WorkloadError

__all__ = ["step_without_closure"]


def step_without_closure(optimizer: torch.optim.Optimizer) -> None:
    """Step on the gradients that are there.

    Raises:
        WorkloadError: The optimizer computes the loss itself.
    """
    try:
        optimizer.step()
    except TypeError as error:
        if not _needs_closure(optimizer):
            raise
        raise WorkloadError(
            f"build_optimizer must return an optimizer whose step() can be called with nothing, but that of "
            f"{type(optimizer).__name__} needs a closure, which computes the loss again; use one that steps on the "
            "gradients that are there"
        ) from error


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step computes the loss itself, as often as it likes."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
