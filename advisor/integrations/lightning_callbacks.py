"""Callbacks of Lightning that go through parameters one by one, beside methods that replace or divide these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.pytorch.callbacks import BaseFinetuning, StochasticWeightAveraging, WeightAveraging

from advisor.errors import MethodRefusedError
from advisor.training.training import Training

__all__ = ["require_known_parameters"]


def require_known_parameters(callbacks: Iterable[Any], training: Training, *, replaced: bool) -> None:
    """Require that callbacks find the parameters that they go through.

    Args:
        callbacks: The Trainer's.
        training: The training, to which all methods were applied.
        replaced: Whether a method has replaced parameters of the model.

    Raises:
        MethodRefusedError: One would not.
    """
    for one in callbacks:
        name = type(one).__name__
        if replaced and isinstance(one, WeightAveraging | StochasticWeightAveraging):
            raise MethodRefusedError(
                f"{name} averages parameters one by one, but a method has replaced some; remove the callback, or the "
                "method (such as lora)"
            )
        if not isinstance(one, BaseFinetuning):
            continue
        if training.world.data.size > 1:
            raise MethodRefusedError(
                f"{name} unfreezes parameters while it trains, but what devices average is known from the beginning; "
                "remove the callback, and unfreeze before fit()"
            )
        own = {id(parameter) for parameter in training.model.parameters()}
        if any(id(parameter) not in own for group in training.optimizer.param_groups for parameter in group["params"]):
            raise MethodRefusedError(
                f"{name} looks for the optimizer's parameters in the module, but a method has the optimizer step "
                "others in their place; remove the callback, or the method (such as host_optimizer)"
            )
