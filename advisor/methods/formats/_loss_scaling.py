"""Scaling the loss, so that gradients which are too small for float16 are not lost.

torch's scaler, which also runs where tensors have no values, and one for gradients that are float16 themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["HalfLossScaler", "LossScaler"]


class LossScaler(torch.amp.GradScaler):
    """torch's GradScaler. Under fake tensors, which have no values, every gradient is taken as finite."""

    def get_scale(self) -> float:
        """The scale; under fake tensors the one it began with."""
        return self._init_scale if isinstance(self._scale, FakeTensor) else float(super().get_scale())

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        if any(isinstance(found, FakeTensor) for found in optimizer_state["found_inf_per_device"].values()):
            return optimizer.step(*args, **kwargs)  # type: ignore[no-any-return]
        return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)


class HalfLossScaler(LossScaler):
    """For parameters, and so gradients, in float16: gradients are checked for overflow, and stay scaled.

    Divided by the scale, many would be zero in float16, which is why torch's own scaler refuses them. So the update
    divides them, in float32 (:meth:`inverse`).
    """

    def inverse(self) -> torch.Tensor:
        """One over the scale, the factor from a gradient to its true value; zero-dimensional."""
        assert self._scale is not None, "no loss was scaled yet"
        return self._scale.double().reciprocal().float()

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        return super()._unscale_grads_(optimizer, torch.ones_like(inv_scale), found_inf, True)
