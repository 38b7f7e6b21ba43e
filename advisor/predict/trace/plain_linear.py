"""Linear layers of fake tensors add their bias as those of plain tensors do.

Where the input's layout does not allow one fused operator, torch adds the bias to the product in place; but not to a
product that is no plain tensor, and that would need memory for both.

Source: ``linear`` in ``aten/src/ATen/native/Linear.cpp`` of PyTorch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["linear_as_plain"]

_aten: Any = torch.ops.aten
_KEYS = {"cpu": ("AutogradCPU", "CPU"), "cuda": ("AutogradCUDA", "CUDA")}


@contextlib.contextmanager
def linear_as_plain(device_type: str) -> Generator[None, None, None]:
    """Let linear layers of fake tensors on a type of device do so, in the whole process; other types do not change."""
    if device_type not in _KEYS:
        yield
        return
    key, own_key = _KEYS[device_type]
    own: Any = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, own_key))

    def linear(samples: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        in_one = samples.dim() == 2 or samples.is_contiguous()
        if bias is None or in_one or not isinstance(samples, FakeTensor):
            result: torch.Tensor = _aten.linear.default.redispatch(own, samples, weight, bias)
            return result
        return torch.matmul(samples, weight.t()).add_(bias)

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        library.impl("linear", linear, key)
        yield
    finally:
        library._destroy()
