"""Optimizers of fake tensors take the steps that they would take with real ones, or on a CUDA device.

On CUDA, torch's optimizers update all parameters with one operator for each part of the formula (``foreach``) unless
they are told otherwise, and need memory for a value of every parameter at once; on a CPU, and with parameters of a
type that they do not know, they go parameter by parameter.

Source: ``_default_to_fused_or_foreach`` in ``torch/optim/optimizer.py``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from advisor.replaced import replaced

__all__ = ["optimizers_as_on_cuda", "optimizers_as_with_values"]

_module: Any = importlib.import_module("torch.optim.optimizer")  # no attribute of its package has this module


def optimizers_as_with_values() -> contextlib.AbstractContextManager[None]:
    """Let optimizers of fake tensors choose as those of real ones on the same device, in the whole process.

    What they were told when they were built stays.
    """
    # Parameters of fake tensors are of this type.
    return replaced(_module, _foreach_supported_types=[*_module._foreach_supported_types, FakeTensor])


@contextlib.contextmanager
def optimizers_as_on_cuda() -> Generator[None, None, None]:
    """Let optimizers of fake CPU tensors choose as those of real ones on CUDA; likewise."""
    devices = _module._get_foreach_kernels_supported_devices
    as_if_there = replaced(_module, _get_foreach_kernels_supported_devices=lambda: [*devices(), "cpu"])
    with as_if_there, optimizers_as_with_values():
        yield
