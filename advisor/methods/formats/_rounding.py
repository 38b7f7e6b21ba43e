"""Rounding float32 to 16 bits: to the nearest number, or to one of the two around it at random.

A bfloat16 has 8 significant bits: rounding to the nearest loses a change of less than 1/512 of a number, however often
it comes. Stochastic rounding, up with a probability as large as the part cut off, keeps it on average.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from advisor.training.state_part import Counted

__all__ = ["Rounding"]

_CUT_BITS = {torch.bfloat16: 16, torch.float16: 13}
"""Bits of a float32's significand that the format does not have."""


class Rounding(Counted):
    """Rounds tensors at random or to the nearest; its random numbers go on after a saved state is loaded.

    Every tensor draws from a generator seeded with its place in the sequence. So one number is the whole state on every
    device, and processes that round the same tensors in the same order round alike.
    """

    counted = "rounded"

    def __init__(self, *, stochastic: bool) -> None:
        self._stochastic = stochastic
        self._generators: dict[torch.device, torch.Generator] = {}

    def round(self, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A float32 tensor in bfloat16 or float16; in the latter, numbers below 6e-5 are rounded to the nearest."""
        assert source.dtype == torch.float32, source.dtype
        if not self._stochastic:
            return source.to(dtype)
        bits = _CUT_BITS[dtype]
        self.count += 1
        drawn = torch.randint(
            0, 2**bits, source.shape, dtype=torch.int32, device=source.device, generator=self._seeded(source)
        )
        # Adding to the bits enlarges the magnitude, whatever the sign. What is cut off afterwards carries into the bits
        # that stay with exactly the wanted probability; an infinity stays.
        rounded = drawn.add_(source.view(torch.int32)).bitwise_and_(-(2**bits)).view(torch.float32)
        # The bits of a NaN could carry into the sign.
        return rounded.masked_fill_(source.isnan(), float("nan")).to(dtype)

    def _seeded(self, like: torch.Tensor) -> torch.Generator | None:
        if isinstance(like, FakeTensor):
            return None  # There are no numbers to draw, and there may be no such device.
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(like.device)
        return self._generators[like.device].manual_seed(self.count)
