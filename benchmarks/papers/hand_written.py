"""A training loop as a person writes it in plain PyTorch: the reference for the generated wrapper."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from advisor.methods.setting import MethodSetting
from advisor.training.training import Phase
from advisor.workload._user_functions import Workload

__all__ = ["HandWritten"]


class HandWritten:
    """Trains a model with the few methods that it knows, and nothing around them.

    Args:
        workload: Its loss and optimizer; without them AdamW, and the loss that the model returns.
        model: Changed in place.
        device: Where to train.
        settings: Any of ``precision(dtype=bf16)``, ``checkpoint(every=1)`` and ``fused_optimizer``.
        block: Name of the class whose modules are recomputed.
    """

    def __init__(
        self,
        workload: Workload,
        model: torch.nn.Module,
        device: torch.device,
        settings: tuple[MethodSetting, ...],
        block: str,
    ) -> None:
        known = {one.name for one in settings}
        assert known <= {"precision", "checkpoint", "fused_optimizer"}, f"nobody has written {known} by hand here"
        self.device = device
        self.model = model.to(device).train()
        self._bf16 = "precision" in known
        self._compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor] = workload.compute_loss or _own_loss
        if "checkpoint" in known:
            blocks = [module for module in self.model.modules() if type(module).__name__ == block]
            assert blocks, f"there is no {block}"
            for module in blocks:
                module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
        self.optimizer = (workload.build_optimizer or torch.optim.AdamW)(self.model.parameters())
        if "fused_optimizer" in known:
            defaults = {**self.optimizer.defaults, "fused": True, "foreach": False}
            taken = {"lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "fused", "foreach"}
            options = {name: value for name, value in defaults.items() if name in taken}
            self.optimizer = type(self.optimizer)(self.model.parameters(), **options)
        # Only for the memory meter, which reads these of our trainings.
        self.phase_listener: Callable[[Phase], None] | None = None
        self.gradient_scaler = None

    def split(self, batch: Any) -> list[Any]:
        """The batch unchanged: each step is one pass. Also for the memory meter."""
        return [batch]

    def step(self, batch: Any) -> torch.Tensor:
        """Make one optimizer step."""
        if isinstance(batch, dict):
            batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        else:
            batch = tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)
        with torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else contextlib.nullcontext():
            loss = self._compute_loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def _own_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss
