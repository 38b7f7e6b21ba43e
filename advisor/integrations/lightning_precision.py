"""The part of a Lightning Trainer that runs backward pass, clipping and optimizer step, for a policy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision

from advisor.integrations.saved_training import parts_of
from advisor.training.training import Training

__all__ = ["PolicyPrecision"]


class PolicyPrecision(Precision):  # type: ignore[misc]
    """Runs backward pass, clipping and optimizer step as the policy's methods need them."""

    precision = "32-true"

    training: Training | None = None

    @contextlib.contextmanager
    def forward_context(self) -> Generator[None, None, None]:
        """Evaluation is in the module's own number format, as ``training.evaluate`` does it."""
        yield

    def backward(
        self, tensor: torch.Tensor, model: LightningModule, optimizer: Any, *arguments: Any, **keywords: Any
    ) -> None:
        """Run the module's ``backward``; under float16 with a scaled loss."""
        scaler = self._applied.gradient_scaler
        super().backward(tensor if scaler is None else scaler.scale(tensor), model, optimizer, *arguments, **keywords)

    def optimizer_step(
        self, optimizer: Any, model: LightningModule, closure: Callable[[], Any], **keywords: Any
    ) -> Any:
        """Forward and backward pass, hooks and clipping, then the policy's optimizer step."""
        training = self._applied
        result = closure()
        training.complete_gradients()
        if training.gradient_scaler is not None:
            training.clip_grad_norm(math.inf)  # Hooks see true gradients.
        self._after_closure(model, optimizer)
        training.optimizer_step()
        return result

    def clip_grad_by_norm(self, optimizer: Any, clip_val: int | float) -> None:
        """Clip to a total norm, which counts every part of the gradient once."""
        self._applied.clip_grad_norm(clip_val)

    def state_dict(self) -> dict[str, Any]:
        """What methods add to a training's state."""
        if self.training is None:
            return {}
        return parts_of(self.training.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loaded with the model."""

    @property
    def _applied(self) -> Training:
        assert self.training is not None, "optimizers are set up before anything steps"
        return self.training
