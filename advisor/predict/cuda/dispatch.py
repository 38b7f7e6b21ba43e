"""Tracing for a CUDA device on a machine that may have none: fake CPU tensors take the paths of CUDA's kernels.

A build of torch without CUDA cannot train on fake *CUDA* tensors: autograd asks for the device as soon as a parameter
requires a gradient, and the process aborts. So fake CPU tensors stand for those of the device. Two of torch's
composite functions then keep something else for the backward pass than they would on CUDA, and so does autocast:

- scaled dot-product attention, which has other kernels on a CPU and with dropout computes the whole matrix of scores,
- dropout, which keeps its mask as numbers of the input's type instead of as booleans,
- autocast, which on CUDA has other operators compute in 32 bits.

They are replaced in torch's dispatcher for as long as the context lasts, so that they are found wherever they are
called from: by a name imported before, inside torch's larger functions, and where checkpointing computes again in the
backward pass (a torch function mode is off there, as ``backward`` is itself such a function).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from advisor.predict.cuda.attention_choice import Attention, AttentionGpu
from advisor.predict.cuda.attention_operators import cuda_attention
from advisor.predict.cuda.autocast import autocast_as_on_cuda

__all__ = ["as_cuda"]

_aten: Any = torch.ops.aten
_CPU: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_OPEN = threading.Lock()


@contextlib.contextmanager
def as_cuda(gpu: AttentionGpu | None = None) -> Generator[None, None, None]:
    """Let attention, dropout and autocast of fake CPU tensors go as on a CUDA device, in the whole process.

    Real tensors, and fake ones of other devices, are left to torch, except for autocast. The backward pass belongs
    inside as well. One such context may be open at a time.
    """
    kind = gpu or AttentionGpu()

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        asked = Attention(*args, **kwargs)
        if not all(_stands_for_cuda(tensor) for tensor in asked.inputs):
            return _torchs_own(_aten.scaled_dot_product_attention.default, *args, **kwargs)
        return cuda_attention(asked, kind)

    def dropout(samples: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        # As in is_fused_kernel_acceptable and dropout of aten/src/ATen/native/Dropout.cpp.
        if not (_stands_for_cuda(samples) and train and 0 < p < 1 and samples.numel() > 0):
            return _torchs_own(_aten.dropout.default, samples, p, train)
        output: torch.Tensor = _aten.native_dropout(samples, p, train)[0]
        return output

    if not _OPEN.acquire(blocking=False):
        raise AssertionError("one context may be open at a time")
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        library.impl("scaled_dot_product_attention", attention, "AutogradCPU")
        library.impl("dropout", dropout, "AutogradCPU")
        autocast_as_on_cuda(library)
        yield
    finally:
        library._destroy()
        _OPEN.release()


def _stands_for_cuda(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"


def _torchs_own(operator: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The composite implementation that is registered for all devices; its own calls go through autograd as ever."""
    result: torch.Tensor = operator.redispatch(_CPU, *args, **kwargs)
    return result
