"""What a search thinks of a combination that was measured, once all figures are seen together."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Standing"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One combination at its best batch.

    Attributes:
        mean: Expected log of its cost, less being better.
        deviation: How far off that may be, a standard deviation.
    """

    mean: float
    deviation: float

    @property
    def score(self) -> float:
        """The expected score where more of it is better."""
        return math.exp(-self.mean)

    def after(self, score: float, noise: float) -> Standing:
        """With one more figure of the combination, which more of is better.

        Args:
            score: The figure.
            noise: By what share it may be off, a standard deviation.
        """
        own, new = 1 / self.deviation**2, 1 / noise**2
        mean = (own * self.mean - new * math.log(score)) / (own + new)
        return Standing(mean=mean, deviation=1 / math.sqrt(own + new))
