# ruff: noqa: N803, N806 - as Triton kernels name their constants
"""The code of ``_group_code`` as Triton kernels: one pass over the memory in either direction.

Given the same seed they make the same bits, up to how a GPU contracts products and sums when it decodes.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

from advisor.methods.activations._group_code import GROUP, buffer_bytes, compute_dtype, smallest_positive, split_buffer

__all__ = ["decode_groups", "encode_groups"]

_ROWS = 4
"""Groups per program."""


def encode_groups(flat: torch.Tensor, *, bits: int, seed: int) -> torch.Tensor:
    """As :func:`advisor.methods.activations._group_code.encode_groups`."""
    groups = -(-flat.numel() // GROUP)
    buffer = torch.empty(buffer_bytes(groups, flat.dtype, bits), dtype=torch.uint8, device=flat.device)
    lowest, highest, codes = split_buffer(buffer, groups, flat.dtype, bits)
    with _at(flat.device):
        seed = seed - (1 << 32) if seed >= 1 << 31 else seed
        rows = triton.cdiv(groups, _ROWS)
        _encode[(rows,)](flat, lowest, highest, codes, flat.numel(), groups, seed, **_constants(bits, flat.dtype))
    return buffer


def decode_groups(buffer: torch.Tensor, *, count: int, dtype: torch.dtype, bits: int) -> torch.Tensor:
    """As :func:`advisor.methods.activations._group_code.decode_groups`."""
    groups = -(-count // GROUP)
    lowest, highest, codes = split_buffer(buffer, groups, dtype, bits)
    flat = torch.empty(count, dtype=dtype, device=buffer.device)
    with _at(flat.device):
        rows, smallest = triton.cdiv(groups, _ROWS), smallest_positive(dtype)
        _decode[(rows,)](flat, lowest, highest, codes, count, groups, smallest, **_constants(bits, dtype))
    return flat


def _constants(bits: int, dtype: torch.dtype) -> dict[str, Any]:
    return {"BITS": bits, "GROUP": GROUP, "ROWS": _ROWS, "WIDE": compute_dtype(dtype) is torch.float64}


def _at(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Triton launches on the current device, wherever its arguments are."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@triton.jit
def _uniform(position, seed):  # type: ignore[no-untyped-def]
    """Numbers in [0, 1): the hash of ``private_random.uniform``."""
    bits = (position ^ seed).to(tl.uint32, bitcast=True)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = bits ^ (bits >> 16)
    return (bits >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit  # type: ignore[untyped-decorator]
def _load(flat, group, byte, count, part: tl.constexpr, BYTES: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One part of each group; past the end the last value, which changes neither extreme."""
    position = group * GROUP + part * BYTES + byte
    values = tl.load(flat + tl.minimum(position, count - 1))
    return values.to(tl.float64) if WIDE else values.to(tl.float32)


# Seeds, sizes and where the parts of a buffer begin differ from tensor to tensor: a kernel made for some of them would
# be compiled anew in the middle of a step.
_DIFFER = ["count", "groups"]
_BEGIN_ANYWHERE = ["flat", "lowest", "highest", "codes"]


@triton.jit(do_not_specialize=[*_DIFFER, "seed"], do_not_specialize_on_alignment=_BEGIN_ANYWHERE)  # type: ignore[untyped-decorator]
def _encode(  # type: ignore[no-untyped-def]
    flat,
    lowest,
    highest,
    codes,
    count,
    groups,
    seed,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    PARTS: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = GROUP // PARTS
    TOP: tl.constexpr = 2**BITS - 1
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < groups
    group = tl.minimum(row, groups - 1)[:, None]
    byte = tl.arange(0, BYTES)[None, :]
    # NaN is passed on, as torch does.
    first = _load(flat, group, byte, count, 0, BYTES, GROUP, WIDE)
    low = tl.min(first, 1, keep_dims=True)
    high = tl.max(first, 1, keep_dims=True)
    broken = tl.sum((first != first).to(tl.int32), 1, keep_dims=True)
    for part in tl.static_range(1, PARTS):
        values = _load(flat, group, byte, count, part, BYTES, GROUP, WIDE)
        low = tl.minimum(low, tl.min(values, 1, keep_dims=True))
        high = tl.maximum(high, tl.max(values, 1, keep_dims=True))
        broken += tl.sum((values != values).to(tl.int32), 1, keep_dims=True)
    low = tl.where(broken > 0, float("nan"), low)
    high = tl.where(broken > 0, float("nan"), high)
    zero_based = tl.where(low == 0, 1.0, 0.0).to(low.dtype)
    width = high - low
    packed = tl.zeros((ROWS, BYTES), tl.int32)
    for part in tl.static_range(0, PARTS):
        values = _load(flat, group, byte, count, part, BYTES, GROUP, WIDE)
        share = values - low
        share = share / width if WIDE else tl.div_rn(share, width + tl.zeros_like(share))
        level = (share + width * 0) * (TOP - zero_based) + zero_based
        below = tl.floor(level)
        position = (group * GROUP + part * BYTES + byte).to(tl.int32)
        code = below + tl.where(_uniform(position, seed) < level - below, 1.0, 0.0).to(level.dtype)
        code = tl.where(values == high, TOP, code)
        code = tl.where(values == low, 0, code)
        code = tl.where(code == code, code, 1.0)
        packed |= code.to(tl.int32) << (BITS * part)
    tl.store(codes + group * BYTES + byte, packed.to(tl.uint8), mask=inside[:, None])
    tl.store(lowest + group, low.to(lowest.dtype.element_ty), mask=inside[:, None])
    tl.store(highest + group, high.to(highest.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=_DIFFER, do_not_specialize_on_alignment=_BEGIN_ANYWHERE)  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    flat,
    lowest,
    highest,
    codes,
    count,
    groups,
    smallest,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    PARTS: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = GROUP // PARTS
    TOP: tl.constexpr = 2**BITS - 1
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < groups
    group = tl.minimum(row, groups - 1)[:, None]
    byte = tl.arange(0, BYTES)[None, :]
    low = tl.load(lowest + group).to(tl.float64 if WIDE else tl.float32)
    high = tl.load(highest + group).to(tl.float64 if WIDE else tl.float32)
    zero_based = tl.where(low == 0, 1.0, 0.0).to(low.dtype)
    step = (high - low) / (TOP - zero_based) if WIDE else tl.div_rn(high - low, TOP - zero_based)
    packed = tl.load(codes + group * BYTES + byte).to(tl.int32)
    for part in tl.static_range(0, PARTS):
        code = ((packed >> (BITS * part)) & TOP).to(low.dtype)
        value = low + (code - zero_based) * step
        value = tl.where((zero_based > 0) & (value <= 0), smallest, value)
        value = tl.where(code == TOP, high, value)
        value = tl.where(code == 0, low, value)
        position = group * GROUP + part * BYTES + byte
        tl.store(flat + position, value.to(flat.dtype.element_ty), mask=inside[:, None] & (position < count))
