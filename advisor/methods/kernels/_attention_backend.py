"""Allow only one kernel for attention, and detect whether that changes anything."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from advisor.errors import MethodRefusedError
from advisor.training.process_setting import hold
from advisor.training.training import Training

__all__ = ["allow_only"]

_KERNELS = {
    "flash": (SDPBackend.FLASH_ATTENTION, "flash_sdp"),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, "mem_efficient_sdp"),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, "cudnn_sdp"),
    "math": (SDPBackend.MATH, "math_sdp"),
}
"""Name -> the kernel, and its switch in ``torch.backends.cuda``, which also holds for a CPU."""

_NO_KERNEL = ("No available kernel", "No viable backend", "Invalid backend")
"""What torch says when no allowed kernel suits; the last on CUDA, where it then asks a kernel for plugins."""


def allow_only(training: Training, kernel: str, label: str) -> None:
    """Allow one kernel of attention in this process until the training closes; ``label`` names the method in notes.

    Not per forward pass, because recomputation runs in the backward pass, outside any context. The first forward pass
    is watched to see whether torch would have chosen the kernel anyway. Forward passes raise
    :class:`~advisor.errors.MethodRefusedError` where the kernel does not suit.
    """
    free = _allowed()
    hold(training, "kernels of attention", [kernel], read=_allowed, write=_allow)
    watched = False

    @contextlib.contextmanager
    def forward() -> Generator[None, None, None]:
        nonlocal watched
        # A compiler would have to compile the watch too, so compiled attention is only refused, never noted.
        compiled = any(module._compiled_call_impl is not None for module in training.model.modules())
        watch = None if watched or compiled else _KernelWatch(free)
        watched = True
        try:
            with watch or contextlib.nullcontext():
                yield
        except RuntimeError as error:
            if not any(words in str(error) for words in _NO_KERNEL):
                raise
            why = f": {watch.reason}" if watch is not None and watch.reason else ""
            raise MethodRefusedError(
                f"{label}: this kernel must suit every attention of the model, but torch cannot use it for one{why}"
            ) from error
        if watch is not None and watch.saw_all and not watch.changed:
            what = "torch chooses this kernel by itself" if watch.calls else "the model never calls torch's attention"
            training.notes.append(f"{label} changed nothing: {what}")

    training.forward_contexts.append(forward)


class _KernelWatch(TorchFunctionMode):
    """Compares torch's choice of a kernel with its choice without the restriction.

    It has not seen all if torch's larger functions compute attention inside; its reason is torch's against the kernel.
    """

    def __init__(self, free: list[str]) -> None:
        super().__init__()
        self._free = [_KERNELS[kernel][0] for kernel in free]
        self.calls = 0
        self.changed = False
        self.saw_all = True
        self.reason = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.multi_head_attention_forward:
            self.saw_all = False
        if func is torch.nn.functional.scaled_dot_product_attention:
            self._compare(args, kwargs)
        return func(*args, **kwargs)

    def _compare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls += 1
        if any(isinstance(tensor, FakeTensor) for tensor in (*args, *kwargs.values())):
            self.saw_all = False  # Of these torch does not ask the kernels of the device.
            return
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                own = torch._fused_sdp_choice(*args, **kwargs)
            except RuntimeError:
                # The reasons come as warnings: a head line, then the first that holds.
                lines = [str(warning.message).split(" (Triggered internally")[0] for warning in said]
                self.reason = next((line for line in reversed(lines) if line), "")
                raise
        with sdpa_kernel(self._free):
            self.changed |= own != torch._fused_sdp_choice(*args, **kwargs)


def _allowed() -> list[str]:
    return [kernel for kernel, (_, switch) in _KERNELS.items() if getattr(torch.backends.cuda, f"{switch}_enabled")()]


def _allow(kernels: list[str]) -> None:
    for kernel, (_, switch) in _KERNELS.items():
        getattr(torch.backends.cuda, f"enable_{switch}")(kernel in kernels)
