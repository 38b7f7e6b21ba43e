"""What the methods about the optimizer have in common: what takes the place of Adam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.methods.base import Verdict
from advisor.methods.optimizers.optimizer_class import class_name_of
from advisor.methods.optimizers.traits import named

if TYPE_CHECKING:
    import torch

__all__ = [
    "WHICH_OPTIMIZER",
    "decays_apart",
    "group_without",
    "judge_adam",
    "refuse_if_not_adam",
]

WHICH_OPTIMIZER = "which optimizer updates the parameters"
"""What each of them decides: two cannot be in use together."""


_OPTIONS = frozenset(
    {
        "amsgrad",
        "betas",
        "capturable",
        "decoupled_weight_decay",
        "differentiable",
        "eps",
        "foreach",
        "fused",
        "lr",
        "maximize",
        "weight_decay",
    }
)


def group_without(group: Mapping[str, Any], *, taken: frozenset[str]) -> dict[str, Any]:
    """A parameter group for the replacement of an Adam: of its options those that are ``taken``, and all else.

    What the user added to a group stays. Betas become a tuple of numbers, as libraries need them.
    """
    kept = {name: value for name, value in group.items() if name in taken or name not in _OPTIONS}
    return kept | {"betas": tuple(float(beta) for beta in kept["betas"])} if "betas" in kept else kept


def decays_apart(optimizer: str, options: Mapping[str, Any]) -> bool:
    """Whether weight decay is applied to the parameters, as AdamW does, instead of being added to the gradients."""
    return named(optimizer).decays_apart or bool(options.get("decoupled_weight_decay"))


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
    if not named(optimizer).adam:
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
