"""Flat float tensors in a float format of 8 bits, in groups, each scaled so that its largest value just fits."""

from __future__ import annotations

import torch

from advisor.training.chunking import chunks

__all__ = ["Float8Coder", "decode_float8", "encode_float8"]

_GROUP = 256


class Float8Coder:
    """Codes activations in one format.

    Args:
        float8: The format, e.g. ``torch.float8_e4m3fn``.
    """

    def __init__(self, float8: torch.dtype) -> None:
        self._float8 = float8

    def encode(self, flat: torch.Tensor) -> torch.Tensor:
        """A flat tensor as a flat uint8 tensor."""
        return encode_float8(flat, self._float8)

    def decode(self, buffer: torch.Tensor, *, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The flat tensor, about as it was."""
        return decode_float8(buffer, count=count, dtype=dtype, float8=self._float8)


def encode_float8(flat: torch.Tensor, float8: torch.dtype) -> torch.Tensor:
    """Code a flat tensor.

    Args:
        flat: ``(n,)``, floating-point.
        float8: The format, e.g. ``torch.float8_e4m3fn``.

    Returns:
        One flat uint8 tensor: a float32 scale per group of 256, then one byte per value. Signs are exact and so are
        zeros; what is too small for the format becomes its smallest number. A group with an infinite value is NaN.
    """
    groups = -(-flat.numel() // _GROUP)
    buffer = torch.empty(groups * (4 + _GROUP), dtype=torch.uint8, device=flat.device)
    scales, codes = _split(buffer, groups, float8)
    for part in chunks(flat, groups, _GROUP):
        _encode(flat[part.start * _GROUP : part.stop * _GROUP], scales[part], codes[part])
    return buffer


def decode_float8(buffer: torch.Tensor, *, count: int, dtype: torch.dtype, float8: torch.dtype) -> torch.Tensor:
    """The flat tensor of ``count`` values of a format that :func:`encode_float8` coded, about as it was."""
    groups = -(-count // _GROUP)
    scales, codes = _split(buffer, groups, float8)
    flat = torch.empty(groups * _GROUP, dtype=dtype, device=buffer.device)
    for part in chunks(buffer, groups, _GROUP):
        flat.view(-1, _GROUP)[part] = (codes[part].float() * scales[part].unsqueeze(1)).to(dtype)
    return flat[:count]


def _encode(flat: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor) -> None:
    """Code some groups, the last of which may be cut short, into ``scales [groups]`` and ``codes [groups, 256]``."""
    limits = torch.finfo(codes.dtype)
    most, least = limits.max, limits.smallest_normal * limits.eps
    values = torch.nn.functional.pad(flat.float(), (0, codes.numel() - flat.numel())).view(-1, _GROUP)
    scale = values.abs().amax(1, keepdim=True) / most
    # Of subnormal numbers the scale is so coarse that what it divides may not fit.
    scaled = values / torch.where(scale == 0, 1.0, scale)
    scaled = torch.where(values == 0, values, scaled.abs().clamp_(min=least, max=most).copysign_(values))
    scales.copy_(scale.squeeze(1))
    codes.copy_(scaled)


def _split(buffer: torch.Tensor, groups: int, float8: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a coded tensor: scales ``(groups,)`` and codes ``(groups, 256)``."""
    return buffer[: 4 * groups].view(torch.float32), buffer[4 * groups :].view(float8).view(groups, _GROUP)
