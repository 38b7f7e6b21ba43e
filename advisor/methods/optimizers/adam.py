"""What methods have in common that put another optimizer in the place of Adam."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from advisor.errors import MethodRefusedError
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import require
from advisor.methods.base import Method, Saves, Stage, Verdict
from advisor.methods.optimizers.optimizer_class import class_name_of
from advisor.methods.optimizers.traits import named
from advisor.methods.setting import Parameters
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["WHICH_OPTIMIZER", "AdamReplacement", "decays_apart", "group_without"]

WHICH_OPTIMIZER = "which optimizer updates the parameters"
"""Decided by each of them: two cannot be in use together."""


class AdamReplacement(Method):
    """Replaces torch.optim.Adam or AdamW.

    Class attributes:
        replacement: What replaces it, in words, for refusals ("the 8-bit version").
        lacks: Options of Adam that the replacement cannot have switched on.
        couples_decay: Whether the replacement can decay weights as torch.optim.Adam does.
        tensor_rate: Whether its learning rate may be a tensor, which its owner changes in place.
    """

    saves = frozenset({Saves.OPTIMIZER_STATE})
    stage = Stage.OPTIMIZER
    decides = WHICH_OPTIMIZER
    replacement: ClassVar[str]
    lacks: ClassVar[tuple[str, ...]]
    couples_decay: ClassVar[bool] = False
    tensor_rate: ClassVar[bool] = True

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs torch's Adam or AdamW, with options that the replacement has too."""
        return Verdict.yes() if facts is None else self._judge(facts.optimizer_class, facts.optimizer_options)

    def require_adam(self, training: Training) -> None:
        """Require an optimizer that can be replaced and has not stepped.

        Raises:
            MethodRefusedError: A parameter group is refused, or the optimizer has a state, which would be lost.
        """
        optimizer = training.optimizer
        for group in optimizer.param_groups:
            require(self._judge(class_name_of(optimizer), group))
        if optimizer.state:
            raise MethodRefusedError(f"the optimizer has already stepped; apply {self.name} before training starts")

    def _judge(self, optimizer: str, options: Mapping[str, Any]) -> Verdict:
        """Whether an optimizer with these options, its defaults or those of a group, can be replaced."""
        if not named(optimizer).adam:
            return Verdict.no(f"it replaces torch.optim.Adam or AdamW, but the optimizer is {optimizer}")
        for option in self.lacks:
            if options.get(option):
                return Verdict.no(f"{self.replacement} has no {option}, but the optimizer has {option}=True")
        if not self.tensor_rate and not isinstance(options.get("lr", 0.0), int | float):
            return Verdict.no(
                f"the learning rate of {self.replacement} must be a number, but the optimizer's is a tensor, and what "
                "is written to it would have no effect; give a number"
            )
        if options.get("weight_decay") and not self.couples_decay and not decays_apart(optimizer, options):
            return Verdict.no(
                f"{self.replacement} decays weights as AdamW does, not as torch.optim.Adam; use AdamW, or "
                "weight_decay=0"
            )
        return Verdict.yes()


def group_without(group: Mapping[str, Any], *, taken: frozenset[str]) -> dict[str, Any]:
    """A parameter group of Adam for its replacement: without the options that are not ``taken``.

    What the user added to a group stays. Betas become a tuple of numbers, as libraries need them.
    """
    import torch

    options = inspect.signature(torch.optim.Adam).parameters
    kept = {name: value for name, value in group.items() if name in taken or name == "params" or name not in options}
    return kept | {"betas": tuple(float(beta) for beta in kept["betas"])} if "betas" in kept else kept


def decays_apart(optimizer: str, options: Mapping[str, Any]) -> bool:
    """Whether weight decay is applied to the parameters, as AdamW does, instead of being added to the gradients."""
    return named(optimizer).decays_apart or bool(options.get("decoupled_weight_decay"))
