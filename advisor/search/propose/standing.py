"""The search model's estimate of a measured combination, from all measurements."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Standing"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One combination at its best batch.

    Attributes:
        mean: Expected log of its cost, less being better.
        deviation: Its standard deviation.
    """

    mean: float
    deviation: float

    @property
    def score(self) -> float:
        """The expected score, larger being better."""
        return math.exp(-self.mean)

    def after(self, score: float, noise: float) -> Standing:
        """Update the estimate with one more measurement of the combination.

        Args:
            score: The measurement, larger being better.
            noise: Its relative standard deviation.
        """
        own, new = 1 / self.deviation**2, 1 / noise**2
        mean = (own * self.mean - new * math.log(score)) / (own + new)
        return Standing(mean=mean, deviation=1 / math.sqrt(own + new))
