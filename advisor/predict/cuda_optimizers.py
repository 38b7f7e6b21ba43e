"""Optimizers of fake CPU tensors take the steps that they would take on a CUDA device.

On CUDA, torch's optimizers update all parameters with one operator for each part of the formula (``foreach``) unless
they are told otherwise, and need memory for a value of every parameter at once; on a CPU they go parameter by
parameter.

Source: ``_default_to_fused_or_foreach`` in ``torch/optim/optimizer.py``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["optimizers_as_on_cuda"]


@contextlib.contextmanager
def optimizers_as_on_cuda() -> Generator[None, None, None]:
    """Let optimizers choose as on CUDA, in the whole process; what they were told when they were built stays."""
    module: Any = importlib.import_module("torch.optim.optimizer")  # no attribute of its package has this module
    devices, kinds = module._get_foreach_kernels_supported_devices, list(module._foreach_supported_types)
    module._get_foreach_kernels_supported_devices = lambda: [*devices(), "cpu"]
    module._foreach_supported_types.append(FakeTensor)  # parameters of fake tensors are of this type
    try:
        yield
    finally:
        module._get_foreach_kernels_supported_devices = devices
        module._foreach_supported_types[:] = kinds
