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

    For each step: :meth:`begin` with its micro-batches, :meth:`next_micro_batch`, :meth:`forward` and :meth:`backward`
    for each of them, :meth:`clip_grad_norm` if gradients are clipped, and ``optimizer.step()``. All passes but the last
    are made inside of ``training.accumulating()``.

    Args:
        training: The training, as a policy left it.
        accumulation_steps: Micro-batches of a step, if a step is not begun with them.
        call: What the loop calls for the loss of a micro-batch, for messages.
        stepping: Whether the pass that was just made is the last one of a step; default: ask for it only then.

    Attributes:
        optimizer: For the trainer and its schedulers.
    """

    def __init__(
        self, training: Training, accumulation_steps: int, call: str, stepping: Callable[[], bool] = lambda: True
    ) -> None:
        self._call = call
        self.training = training
        self._stepping = stepping
        self.optimizer = TrainerOptimizer(training, stepping)
        self._accumulation_steps = accumulation_steps
        self._instead: list[Any] = []  # of the step: what is computed in a micro-batch's place
        self._place = -1
        self._is_told = False  # of every next micro-batch; otherwise each forward pass is that of the next one
        self._has_gradients = False  # made since a step was begun
        self._is_computed = False
        self._computed: torch.Tensor | None = None  # the loss of the last forward pass, until its backward pass

    def begin(self, micro_batches: list[Any]) -> None:
        """Weigh the micro-batches of the next step, in the order in which they will be computed.

        Raises:
            PolicyError: The step before made gradients, and the policy's optimizer was not called.
            WorkloadError: A process's share of them has no target.
        """
        if self._has_gradients and not self.optimizer.was_called:
            raise PolicyError(
                "Each step must end with the policy's optimizer (prepared.optimizer, trainer.optimizer), but it was "
                "not called in the last one, which made gradients. Call its step() and zero_grad(), not another's."
            )
        self._has_gradients = self.optimizer.was_called = False
        weights, self._place, self._is_told = self.training.micro_batch_weights, -1, False
        weights.end()
        if len(micro_batches) == 1 and self.training.world.data.size == 1:
            self._instead = [None]  # It is the whole batch.
            return
        self._instead = weights.begin_in_order(micro_batches)
        self.training.check_class_weights()

    def next_micro_batch(self) -> None:
        """Go on to the next micro-batch, of which any number of forward passes may be made."""
        self._place, self._is_told = self._place + 1, True
        self._is_computed, self._computed = False, None

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss of a micro-batch, scaled to its share of the step; the trainer must not scale it again.

        Args:
            batch: The micro-batch, which the trainer may have moved or changed since the step began.
        """
        if not self._is_told:
            self._place += 1
        self._is_computed, self._computed = True, self._loss(batch)
        return self._computed

    def _loss(self, batch: Any) -> torch.Tensor:
        if self._place >= len(self._instead):  # It was not said which micro-batches there are: each counts the same.
            return self.training.forward(batch) / self._accumulation_steps
        instead = self._instead[self._place]
        if instead is None:
            self.training.micro_batch_weights.replace(self._place, by=batch)
        return self.training.forward(batch if instead is None else instead)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Add the gradients of a loss; other trainers' options have no meaning here.

        Raises:
            PolicyError: It is not scaled to the share of its micro-batch, or was scaled twice.
        """
        if self._accumulation_steps > 1:
            self._require_share(loss)
        self._computed = None  # Its graph is not to be kept.
        self._has_gradients = True
        self.training.backward(loss)

    def _require_share(self, loss: torch.Tensor) -> None:
        rule = "The loss of a micro-batch must have its share of the step"
        if not self._is_computed:
            raise PolicyError(
                f"{rule}, of which the policy accumulates {self._accumulation_steps}, but this one was not computed by "
                f"{self._call}, which scales it. Call that for it."
            )
        computed = self._computed
        if computed is not None and (scaled := _scaled(computed, loss, self._accumulation_steps)):
            raise PolicyError(f"{rule}, which {self._call} gives it, but it was {scaled} once more. Leave that out.")

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


def _scaled(loss: torch.Tensor, by_loop: torch.Tensor, count: int) -> str:
    """How a loop has scaled a loss to its share of as many micro-batches; empty if it has not, or cannot be told."""
    node: Any = by_loop.grad_fn
    if node is None or not any(below is loss.grad_fn for below, _ in node.next_functions):
        return ""
    factor = getattr(node, "_saved_other", None)  # a number is kept as a tensor on the CPU
    if not isinstance(factor, torch.Tensor) or factor.device.type != "cpu" or factor.numel() != 1:
        return ""
    for name, value, words in (("DivBackward0", count, "divided by"), ("MulBackward0", 1 / count, "multiplied by")):
        if node.name() == name and math.isclose(float(factor), value, rel_tol=1e-6):
            return f"{words} {value:g}"
    return ""
