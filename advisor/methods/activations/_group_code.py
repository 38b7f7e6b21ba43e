"""Flat float tensors as a few bits per value, in groups, each between its own smallest and largest value.

Values are rounded up or down at random, so that they are right on average. The smallest and the largest value of a
group are exact. In a group whose smallest value is zero, zeros stay zero and everything else stays positive: that is
all that the backward pass of ReLU needs, and errors of a mask do not average out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from advisor.methods.activations._private_random import uniform
from advisor.training.chunking import chunks

__all__ = [
    "GROUP",
    "buffer_bytes",
    "compute_dtype",
    "decode_groups",
    "encode_groups",
    "smallest_positive",
    "split_buffer",
]

GROUP = 256
"""Values per group."""


def encode_groups(flat: torch.Tensor, *, bits: int, seed: int) -> torch.Tensor:
    """Code a flat floating-point tensor with 8, 4 or 2 bits per value, rounded by the draw that ``seed`` numbers.

    Returns:
        One flat uint8 tensor: the smallest values of the groups and the largest, in the format of ``flat``, then the
        codes, ``32 * bits`` bytes per group. A group with an infinite value keeps its two extremes and has NaN or
        infinity between them, so that it shows.
    """
    groups = -(-flat.numel() // GROUP)
    buffer = torch.empty(buffer_bytes(groups, flat.dtype, bits), dtype=torch.uint8, device=flat.device)
    views = split_buffer(buffer, groups, flat.dtype, bits)
    for part in chunks(flat, groups, GROUP):
        start = part.start * GROUP
        _encode(flat[start : part.stop * GROUP], [view[part] for view in views], bits=bits, seed=seed, start=start)
    return buffer


def decode_groups(buffer: torch.Tensor, *, count: int, dtype: torch.dtype, bits: int) -> torch.Tensor:
    """The flat tensor of ``count`` values of a format that :func:`encode_groups` coded, about as it was."""
    groups = -(-count // GROUP)
    lowest, highest, codes = split_buffer(buffer, groups, dtype, bits)
    flat = torch.empty(groups * GROUP, dtype=dtype, device=buffer.device)
    for part in chunks(buffer, groups, GROUP):
        flat.view(-1, GROUP)[part] = _decode(lowest[part], highest[part], codes[part], bits)
    return flat[:count]


def split_buffer(
    buffer: torch.Tensor, groups: int, dtype: torch.dtype, bits: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of a coded tensor: smallest values ``(groups,)``, largest ``(groups,)``, codes ``(groups, 32 * bits)``."""
    size = groups * dtype.itemsize
    codes = buffer[2 * size :].view(groups, GROUP * bits // 8)
    return buffer[:size].view(dtype), buffer[size : 2 * size].view(dtype), codes


def buffer_bytes(groups: int, dtype: torch.dtype, bits: int) -> int:
    """Bytes that :func:`encode_groups` needs for a number of groups."""
    return groups * (2 * dtype.itemsize + GROUP * bits // 8)


def smallest_positive(dtype: torch.dtype) -> float:
    """Stands for a positive value that was rounded to zero."""
    return max(torch.finfo(dtype).tiny, torch.finfo(torch.float32).tiny)  # A kernel takes its numbers as float32.


def _padded(values: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` values; the last is repeated, which changes neither extreme of its group."""
    values = values.to(compute_dtype(values.dtype))
    missing = count - values.numel()
    return torch.cat([values, values[-1:].expand(missing)]) if missing else values


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The format in which values of a format are coded."""
    return torch.promote_types(dtype, torch.float32)


def _encode(flat: torch.Tensor, views: Sequence[torch.Tensor], *, bits: int, seed: int, start: int) -> None:
    """Code some groups, which begin at ``start`` of the whole, into views of its coded tensor."""
    lowest, highest, codes = views
    values = _padded(flat, codes.shape[0] * GROUP).view(-1, GROUP)
    noise = uniform(values.numel(), seed=seed, start=start, device=flat.device).view(-1, GROUP)
    top = 2**bits - 1
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    zero_based = (low == 0).to(values.dtype)  # Code 0 is then zero alone, and code 1 what rounds to zero.
    width = high - low
    # Divided first: a value at an extreme is then exactly at it. An infinite width makes it NaN.
    level = ((values - low) / width + width * 0) * (top - zero_based) + zero_based
    below = level.floor()
    code = below + (noise < level - below)
    code = torch.where(values == high, top, code)
    code = torch.where(values == low, 0, code).nan_to_num_(nan=1.0)
    # The first bits of the bytes hold the first part of the group, so that each part is contiguous.
    parts = code.to(torch.uint8).view(-1, 8 // bits, GROUP * bits // 8)
    packed = parts[:, 0].clone()
    for number in range(1, 8 // bits):
        packed |= parts[:, number] << (bits * number)
    lowest.copy_(low.squeeze(1))
    highest.copy_(high.squeeze(1))
    codes.copy_(packed)


def _decode(lowest: torch.Tensor, highest: torch.Tensor, codes: torch.Tensor, bits: int) -> torch.Tensor:
    top = 2**bits - 1
    dtype = compute_dtype(lowest.dtype)
    low, high = lowest.to(dtype).unsqueeze(1), highest.to(dtype).unsqueeze(1)
    parts = [(codes >> (bits * number)) & top for number in range(8 // bits)]
    code = torch.stack(parts, 1).view(-1, GROUP).to(dtype)
    zero_based = (low == 0).to(dtype)
    value = low + (code - zero_based) * ((high - low) / (top - zero_based))
    value = torch.where((low == 0) & (value <= 0), smallest_positive(lowest.dtype), value)
    value = torch.where(code == top, high, value)
    return torch.where(code == 0, low, value)
