"""The passes of a training, made by the loop of another trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from advisor.errors import MethodRefusedError, PolicyError
from advisor.integrations.trainer_optimizer import TrainerOptimizer
from advisor.training.training import Training

__all__ = ["TrainerLoop"]


class TrainerLoop:
    """What a trainer calls in place of its own passes, with the effect of :meth:`Training.step`.

    For each step: :meth:`begin` with its micro-batches, :meth:`forward` and :meth:`backward` for each of them,
    :meth:`clip_grad_norm` if gradients are clipped, and ``optimizer.step()``. All passes but the last are made inside
    of ``training.accumulating()``.

    Args:
        training: The training, as a policy left it.
        accumulation_steps: Micro-batches of a step, if a step is not begun with them.
        stepping: Whether the pass that was just made is the last one of a step; default: ask for it only then.

    Attributes:
        optimizer: For the trainer and its schedulers.
    """

    def __init__(
        self, training: Training, accumulation_steps: int, stepping: Callable[[], bool] = lambda: True
    ) -> None:
        self.training = training
        self._stepping = stepping
        self.optimizer = TrainerOptimizer(training, stepping)
        self._accumulation_steps = accumulation_steps
        self._instead: list[Any] = []  # of the step: what is computed in a micro-batch's place
        self._place = 0

    def begin(self, micro_batches: list[Any]) -> None:
        """Weigh the micro-batches of the next step, in the order in which they will be computed.

        Raises:
            WorkloadError: A process's share of them has no target.
        """
        weights, self._place = self.training.micro_batch_weights, 0
        weights.end()
        if len(micro_batches) == 1 and self.training.world.data.size == 1:
            self._instead = [None]  # It is the whole batch.
            return
        self._instead = weights.begin_in_order(micro_batches)
        self.training.check_class_weights()

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss of the next micro-batch, scaled to its share of the step; the trainer must not scale it again.

        Args:
            batch: The micro-batch, which the trainer may have moved or changed since the step began.
        """
        place, self._place = self._place, self._place + 1
        if place >= len(self._instead):  # It was not said which micro-batches there are: each counts the same.
            return self.training.forward(batch) / self._accumulation_steps
        instead = self._instead[place]
        if instead is None:
            self.training.micro_batch_weights.replace(place, by=batch)
        return self.training.forward(batch if instead is None else instead)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Add the gradients of a loss; other trainers' options have no meaning here."""
        self.training.backward(loss)

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor | None:
        """Clip the gradients of the step, in place of the training; an infinite norm only measures them.

        Returns:
            The norm before; ``None`` if gradients are only to be measured, and are used up in the backward pass.

        Raises:
            MethodRefusedError: Micro-batches of the step follow.
            PolicyError: The training clips to another norm.
        """
        measured_only = math.isinf(max_norm)
        if self.training.steps_in_backward and measured_only:
            return None
        if not self._stepping():
            raise MethodRefusedError(
                "gradients are clipped when those of a step are complete, but micro-batches of this step follow; clip "
                "inside of `if accelerator.sync_gradients:`"
            )
        own = self.training.max_grad_norm
        if own is not None and not measured_only and max_norm != own:
            raise PolicyError(
                f"Gradients must be clipped to one norm, but the policy was applied with max_grad_norm={own:g} and the "
                f"loop clips to {max_norm:g}. Leave out max_grad_norm, or the call in the loop."
            )
        self.optimizer.clipped = not measured_only
        return self.training.clip_grad_norm(max_norm)
