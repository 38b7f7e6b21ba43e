"""Random numbers of one training, apart from those that the model's dropout draws.

A number is a hash of its position, so only the number of draws is stored, and a CPU, a GPU and a Triton kernel get the
same bits.
"""

from __future__ import annotations

import torch

from advisor.training.state_part import Counted

__all__ = ["Draws", "mixed", "uniform"]

_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
"""Multipliers of a hash of 32 bits with little bias: https://github.com/skeeto/hash-prospector."""

_GOLDEN = 0x9E3779B9


class Draws(Counted):
    """Seeds for the draws of one process in a training, all different, which go on after a restart."""

    counted = "count"

    def __init__(self, stream: int = 0) -> None:
        self._stream = stream

    def next_seed(self) -> int:
        """A new seed, of 32 bits."""
        self.count += 1
        return mixed(mixed(self.count) + mixed(self._stream + _GOLDEN))


def mixed(value: int) -> int:
    """The hash of 32 bits of an integer that :func:`uniform` applies to each position."""
    value &= 0xFFFFFFFF
    value = (value ^ (value >> 16)) * _FIRST & 0xFFFFFFFF
    value = (value ^ (value >> 15)) * _SECOND & 0xFFFFFFFF
    return value ^ (value >> 16)


def uniform(count: int, *, seed: int, start: int, device: torch.device) -> torch.Tensor:
    """``count`` uniform float32 numbers in [0, 1), of 24 bits, from position ``start`` of the draw ``seed``."""
    # torch has no unsigned arithmetic: products of int32 wrap as they should, and shifts need a mask.
    bits = torch.arange(count, dtype=torch.int32, device=device).add_(_signed(start)).bitwise_xor_(_signed(seed))
    bits.bitwise_xor_(bits.bitwise_right_shift(16).bitwise_and_(0xFFFF)).mul_(_signed(_FIRST))
    bits.bitwise_xor_(bits.bitwise_right_shift(15).bitwise_and_(0x1FFFF)).mul_(_signed(_SECOND))
    bits.bitwise_xor_(bits.bitwise_right_shift(16).bitwise_and_(0xFFFF))
    return bits.bitwise_right_shift_(8).bitwise_and_(0xFFFFFF).float().mul_(2.0**-24)


def _signed(value: int) -> int:
    """The 32 low bits of ``value`` as int32 has them."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
