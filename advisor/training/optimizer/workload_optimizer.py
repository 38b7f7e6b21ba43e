"""Build the workload's optimizer, and step it on existing gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import torch

from advisor.errors import WorkloadError
from advisor.training.optimizer.device_parameter import device_parameter
from advisor.training.plain_module_names import plain_module_names
from advisor.workload.traceback_text import user_traceback

__all__ = ["built_optimizer", "step_without_closure", "stepped_parameters"]


def built_optimizer(
    model: torch.nn.Module, build: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """An optimizer over the parameters that train.

    Raises:
        WorkloadError: There are none, or ``build`` takes them for the model or returns something else.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise WorkloadError("at least one parameter must require a gradient, but all of them are frozen")
    try:
        with plain_module_names(model):  # by which groups are often made
            optimizer = build(parameters)
    except AttributeError as error:
        if error.obj is not parameters:
            raise
        raise WorkloadError(
            f"build_optimizer must make an optimizer of the list of parameters that it is given, but it asks that list "
            f"for .{error.name} as if it were the model; write for example torch.optim.AdamW(params, lr=...)",
            user_traceback(error),
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(
            f"build_optimizer must return a torch.optim.Optimizer, but it returned {type(optimizer).__name__}"
        )
    return optimizer


def step_without_closure(optimizer: torch.optim.Optimizer) -> None:
    """Step on the existing gradients.

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


def stepped_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters of an optimizer in the model's order, whatever its groups: a norm depends on it, by rounding."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len(optimizer.param_groups) == 1:
        return parameters
    places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    return sorted(parameters, key=lambda one: places.get(id(device_parameter(one)), len(places)))


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step computes the loss itself, possibly several times, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
