"""Optimizers that read numbers from tensors, under fake tensors: these have none, so any will do."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

__all__ = ["let_step_without_values"]


class _OneForEach(TorchFunctionMode):
    """``item()`` of a fake tensor is 1.0: a factor of an update decides nothing about its memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.item and isinstance(args[0], FakeTensor):
            return 1.0
        return func(*args, **(kwargs or {}))


def let_step_without_values(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer that is built under fake tensors step; any other stays as it is."""
    if detect_fake_mode() is None:
        return
    step = optimizer.step

    @functools.wraps(step)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        with _OneForEach():
            return step(*args, **kwargs)

    # On the object and not in a subclass: torch runs the hooks around ``step`` once for each class that has its own.
    optimizer.step = stepping  # type: ignore[method-assign]
