"""Flat float tensors in a float format of 8 bits, in groups, each scaled so that its largest value just fits."""

from __future__ import annotations

import torch

from advisor.training.chunking import chunks

__all__ = ["Float8Coder"]

_GROUP = 256


class Float8Coder:
    """Codes activations in one format, such as ``torch.float8_e4m3fn``."""

    def __init__(self, float8: torch.dtype) -> None:
        self._float8 = float8

    def encode(self, flat: torch.Tensor) -> torch.Tensor:
        """Code a flat floating-point tensor.

        Returns:
            One flat uint8 tensor: a float32 scale per group of 256, then one byte per value. Signs and zeros are
            exact; what is too small for the format becomes its smallest number. A group with an infinite value is NaN.
        """
        groups = -(-flat.numel() // _GROUP)
        buffer = torch.empty(groups * (4 + _GROUP), dtype=torch.uint8, device=flat.device)
        scales, codes = self._split(buffer, groups)
        for part in chunks(flat, groups, _GROUP):
            _encode(flat[part.start * _GROUP : part.stop * _GROUP], scales[part], codes[part])
        return buffer

    def decode(self, buffer: torch.Tensor, *, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The flat tensor of ``count`` values of format ``dtype``, about as it was."""
        groups = -(-count // _GROUP)
        scales, codes = self._split(buffer, groups)
        flat = torch.empty(groups * _GROUP, dtype=dtype, device=buffer.device)
        for part in chunks(buffer, groups, _GROUP):
            flat.view(-1, _GROUP)[part] = (codes[part].float() * scales[part].unsqueeze(1)).to(dtype)
        return flat[:count]

    def _split(self, buffer: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a coded tensor: scales ``(groups,)`` and codes ``(groups, 256)``."""
        return buffer[: 4 * groups].view(torch.float32), buffer[4 * groups :].view(self._float8).view(groups, _GROUP)


def _encode(flat: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor) -> None:
    """Code some groups, the last of which may be cut short, into ``scales [groups]`` and ``codes [groups, 256]``."""
    limits = torch.finfo(codes.dtype)
    most, least = limits.max, limits.smallest_normal * limits.eps
    values = torch.nn.functional.pad(flat.float(), (0, codes.numel() - flat.numel())).view(-1, _GROUP)
    scale = values.abs().amax(1, keepdim=True) / most
    # The scale of subnormal numbers is so coarse that what it divides may not fit.
    scaled = values / torch.where(scale == 0, 1.0, scale)
    scaled = torch.where(values == 0, values, scaled.abs().clamp_(min=least, max=most).copysign_(values))
    scales.copy_(scale.squeeze(1))
    codes.copy_(scaled)
