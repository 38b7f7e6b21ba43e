"""Codes activations in groups, with a Triton kernel where that works and plain PyTorch where it does not."""

from __future__ import annotations

from types import ModuleType

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from advisor.methods.activations import _group_code as group_code
from advisor.methods.activations._private_random import Draws

__all__ = ["GroupCoder"]


class GroupCoder:
    """Codes activations with 8, 4 or 2 bits per value; a draw for every tensor decides its rounding.

    Attributes:
        why_plain: Why plain PyTorch is used on a GPU; empty if the kernel is, or the device is another.
    """

    def __init__(self, bits: int, draws: Draws, device: torch.device) -> None:
        self.why_plain = ""
        self._bits = bits
        self._draws = draws
        self._kernel: ModuleType | None = None
        self._device = device
        if device.type == "cuda" and torch.cuda.is_available():
            self._kernel, self.why_plain = _working_kernel(bits, device)

    def encode(self, flat: torch.Tensor) -> torch.Tensor:
        """A flat tensor as a flat uint8 tensor."""
        seed = self._draws.next_seed()
        if isinstance(flat, FakeTensor) and not self._is_plain(flat):  # A kernel takes nothing but its result.
            count = group_code.buffer_bytes(-(-flat.numel() // group_code.GROUP), flat.dtype, self._bits)
            return flat.new_empty(count, dtype=torch.uint8)
        return self._code(flat).encode_groups(flat, bits=self._bits, seed=seed)  # type: ignore[no-any-return]

    def decode(self, buffer: torch.Tensor, *, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The ``count`` values, about as they were."""
        if isinstance(buffer, FakeTensor) and not self._is_plain(buffer):
            return buffer.new_empty(count, dtype=dtype)
        return self._code(buffer).decode_groups(buffer, count=count, dtype=dtype, bits=self._bits)  # type: ignore[no-any-return]

    def _is_plain(self, tensor: torch.Tensor) -> bool:
        """Whether a fake tensor's data would be coded by plain PyTorch, which takes memory on the way."""
        return tensor.device.type == "cpu" or bool(self.why_plain)

    def _code(self, tensor: torch.Tensor) -> ModuleType:
        """The kernels, for tensors on the device that they were tried on; a model may keep some elsewhere."""
        if self._kernel is None or tensor.device != self._device or isinstance(tensor, FakeTensor):
            return group_code
        return self._kernel


def _working_kernel(bits: int, device: torch.device) -> tuple[ModuleType | None, str]:
    """The module with the kernels, or why they cannot be used, which shows when one is first compiled."""
    try:
        from advisor.methods.activations import _group_kernel as group_kernel

        # On real memory, in a trace as well: the address of a fake tensor is 0, and a kernel would write there.
        with _disable_current_modes():
            sample = torch.linspace(0.0, 1.0, group_code.GROUP, device=device)
            buffer = group_kernel.encode_groups(sample, bits=bits, seed=1)
            group_kernel.decode_groups(buffer, count=sample.numel(), dtype=sample.dtype, bits=bits)
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # What a kernel does wrong shows when it has run.
    except Exception as error:  # Triton raises what its compiler, the driver or a missing C compiler raise.
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # Raises again what a kernel did: nothing runs on that device any more.
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return group_kernel, ""
