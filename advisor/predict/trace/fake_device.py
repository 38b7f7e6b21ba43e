"""Where a fake tensor would be, without asking torch, which takes the question through every dispatch mode.

Half of what is dispatched in the trace of a step are these questions, most of them from torch itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["device_asked_for", "device_of"]


def device_of(tensor: torch.Tensor) -> torch.device:
    """As ``tensor.device``."""
    if type(tensor) is not FakeTensor:
        return tensor.device
    # While torch runs a kernel on them, fake tensors say that they are what they are made of.
    return torch.device("meta") if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


def device_asked_for(func: Callable[..., Any], args: tuple[Any, ...]) -> torch.device | None:
    """The answer to a dispatched call that asks for the device of a fake tensor; ``None`` for every other call."""
    if func is torch.ops.prim.device.default and type(args[0]) is FakeTensor:
        return device_of(args[0])
    return None
