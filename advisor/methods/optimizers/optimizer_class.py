"""The class of an optimizer that is there: its name, its traits, and whether it steps as that class does."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from advisor.methods.optimizers.traits import OptimizerTraits, named

if TYPE_CHECKING:
    import torch

__all__ = ["class_name_of", "has_own_step", "traits_of"]


def class_name_of(optimizer: torch.optim.Optimizer) -> str:
    """The class as a probe notes it, e.g. ``"torch.optim.adamw.AdamW"``; one whose step was replaced is no such."""
    own = "one with a step of its own, " if has_own_step(optimizer) else ""
    return f"{own}{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def traits_of(optimizer: torch.optim.Optimizer) -> OptimizerTraits:
    """What is known of an optimizer: what its class declares, or the table has; with a step of its own, nothing."""
    declared = vars(type(optimizer)).get("traits")
    if isinstance(declared, OptimizerTraits) and not has_own_step(optimizer):
        return declared
    return named(class_name_of(optimizer))


def has_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the user gave this one object another step, as to clip gradients in it: its class has not got that.

    Schedulers wrap the step, and so do methods; what they wrap is the class's all the same.
    """
    step = vars(optimizer).get("step")
    if step is None:
        return False
    plain = inspect.unwrap(getattr(step, "__func__", step))
    return plain is not inspect.unwrap(type(optimizer).step) and not getattr(plain, "__module__", "").startswith(
        "advisor."
    )
