"""The optimizer that another trainer is given: its step is the whole optimizer step of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NoReturn, overload

import torch

from advisor.errors import MethodRefusedError
from advisor.training.training import Training

__all__ = ["TrainerOptimizer"]


class TrainerOptimizer(torch.optim.Optimizer):
    """Stands for a training's optimizer: schedulers and trainers read and set its groups, and call its step.

    The step of the optimizer alone would miss what comes before and after it: complete and unscaled gradients, and what
    methods do once a step is made. The state is that of a plain optimizer, whatever the method.

    Args:
        training: The training.
        stepping: Whether the pass that was just made is the last one of a step; until then ``step`` and ``zero_grad``
            do nothing. Default: every pass.

    Attributes:
        step_was_skipped: Whether the last step changed nothing, because a gradient overflowed.
        was_called: Whether ``step`` or ``zero_grad`` was called since a step was begun.
        clipped: Whether the loop has clipped the gradients of the step, so that the training does not do so again.
    """

    _is_accelerate_prepared = True  # accelerate takes it as it is

    def __init__(self, training: Training, stepping: Callable[[], bool] = lambda: True) -> None:
        # Not the base class's: groups, state and hooks are those of the training's optimizer.
        self._training = training
        self._stepping = stepping
        self._held: dict[str, Any] | None = None
        self.step_was_skipped = False
        self.was_called = False
        self.clipped = False

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that it stands for."""
        return self._training.optimizer

    # Any, because one can assign to those of the base class.
    param_groups: Any = property(attrgetter("optimizer.param_groups"), doc="The groups of the training's optimizer.")
    state: Any = property(attrgetter("optimizer.state"), doc="The state of the training's optimizer, as held here.")
    defaults: Any = property(attrgetter("optimizer.defaults"), doc="The defaults of the training's optimizer.")

    def __getattr__(self, name: str) -> Any:
        if name in ("_training", "__setstate__"):  # while it is copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> NoReturn: ...

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Make the optimizer step of the training, and drop the gradients.

        Raises:
            MethodRefusedError: A closure would compute the loss again, or float16's gradients were made of a loss that
                is not scaled.
        """
        if closure is not None:
            raise MethodRefusedError("the optimizer steps on the gradients that are there; call step() without closure")
        self.was_called = True
        if not self._stepping():
            return
        scaler = self._training.gradient_scaler
        if scaler is not None and scaler._scale is None:  # made with the first loss that it scales
            raise MethodRefusedError(
                "float16's gradients are made of a scaled loss, but no loss was scaled before the first step; call "
                "accelerator.backward(loss), not loss.backward()"
            )
        before = 0.0 if scaler is None else scaler.get_scale()
        own_norm = self._training.max_grad_norm
        if self.clipped:
            self._training.max_grad_norm = None
        try:
            self._training.optimizer_step()
        finally:
            self._training.max_grad_norm, self.clipped = own_norm, False
        self.step_was_skipped = scaler is not None and scaler.get_scale() < before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, unless more are to be added to them."""
        self.was_called = True
        if self._stepping():
            self.optimizer.zero_grad(set_to_none=set_to_none)

    def hold(self, state: dict[str, Any] | None) -> None:
        """Have :meth:`state_dict` return this state, which all processes have put together; ``None``: no longer."""
        self._held = state

    def state_dict(self) -> dict[str, Any]:
        """The state of a plain optimizer. With several processes, all must call it, and rank 0 gets it."""
        if self._held is not None:
            return self._held
        return self._training.distribution.optimizer_state(self.optimizer)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state of a plain optimizer; with several processes, each is given all of it."""
        self._training.load_state_dict({"optimizer": state_dict})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: methods have prepared what is trained.

        Raises:
            MethodRefusedError: Always.
        """
        raise MethodRefusedError(
            "what is trained must be known when a policy is applied, because methods prepare it; unfreeze it before"
        )
