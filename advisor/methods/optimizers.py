"""What the methods about the optimizer have in common: how classes are called, and what takes the place of Adam."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.methods.base import Verdict

if TYPE_CHECKING:
    import torch

__all__ = [
    "ADAM",
    "ADAMW",
    "WHICH_OPTIMIZER",
    "class_name_of",
    "decays_apart",
    "has_own_step",
    "judge_adam",
    "needs_closure",
    "refuse_if_not_adam",
]

WHICH_OPTIMIZER = "which optimizer updates the parameters"
"""What each of them decides: two cannot be in use together."""

ADAM = "torch.optim.adam.Adam"
ADAMW = "torch.optim.adamw.AdamW"


def class_name_of(optimizer: torch.optim.Optimizer) -> str:
    """The class as a probe notes it, e.g. ``"torch.optim.adamw.AdamW"``; one whose step was replaced is no such."""
    own = "one with a step of its own, " if has_own_step(optimizer) else ""
    return f"{own}{type(optimizer).__module__}.{type(optimizer).__qualname__}"


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


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step computes the loss itself, as often as it likes."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def decays_apart(optimizer: str, options: Mapping[str, Any]) -> bool:
    """Whether weight decay is applied to the parameters, as AdamW does, instead of being added to the gradients."""
    return optimizer == ADAMW or bool(options.get("decoupled_weight_decay"))


def judge_adam(
    optimizer: str,
    options: Mapping[str, Any],
    *,
    replacement: str,
    lacks: tuple[str, ...],
    couples_decay: bool,
    tensor_rate: bool = True,
) -> Verdict:
    """Whether an optimizer is one of torch's Adams, with nothing that its replacement lacks.

    Args:
        optimizer: Its class.
        options: Its defaults, or those of one of its parameter groups.
        replacement: The replacement in words, for the reason ("the 8-bit version").
        lacks: Options that the replacement cannot have switched on.
        couples_decay: Whether the replacement can decay weights as torch.optim.Adam does.
        tensor_rate: Whether its learning rate may be a tensor, which whoever holds it changes in place.
    """
    if optimizer not in (ADAMW, ADAM):
        return Verdict.no(f"it replaces torch.optim.Adam or AdamW, but the optimizer is {optimizer}")
    for option in lacks:
        if options.get(option):
            return Verdict.no(f"{replacement} has no {option}, but the optimizer has {option}=True")
    if not tensor_rate and not isinstance(options.get("lr", 0.0), int | float):
        return Verdict.no(
            f"the learning rate of {replacement} must be a number, but the optimizer's is a tensor, and what is "
            "written to it would have no effect; give a number"
        )
    if options.get("weight_decay") and not couples_decay and not decays_apart(optimizer, options):
        return Verdict.no(
            f"{replacement} decays weights as AdamW does, not as torch.optim.Adam; use AdamW, or weight_decay=0"
        )
    return Verdict.yes()


def refuse_if_not_adam(optimizer: torch.optim.Optimizer, method: str, **needs: Any) -> None:
    """Apply :func:`judge_adam` to every parameter group of an optimizer that has not stepped.

    Raises:
        MethodRefusedError: A group is refused, or the optimizer has a state, which would be lost.
    """
    for group in optimizer.param_groups:
        verdict = judge_adam(class_name_of(optimizer), group, **needs)
        if not verdict.applicable:
            raise MethodRefusedError(verdict.reason)
    if optimizer.state:
        raise MethodRefusedError(f"the optimizer has already stepped; apply {method} before training starts")
