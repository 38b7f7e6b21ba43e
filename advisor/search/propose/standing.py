"""The search model's estimate of measured combinations, from all measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from advisor.search.space.factors import Floats

__all__ = ["JointStanding", "Standing"]

_LEAST_VARIANCE = 1e-12
"""Rounding may make a variance negative."""


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


class JointStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Several combinations at given batches, estimated together: measurements in turn tell about their difference.

    Attributes:
        mean: Expected log of each cost, less being better.
        covariance: Of these logs.
    """

    mean: Floats
    covariance: Floats

    def after(self, weights: Mapping[int, float], log: float, noise: float) -> JointStanding:
        """Update the estimate with one more measurement (Kalman's formula).

        Args:
            weights: What it measured, as a sum of logs of costs: number of each -> its weight.
            log: The measured sum.
            noise: Its standard deviation.
        """
        of = np.zeros(len(self.mean))
        of[list(weights)] = list(weights.values())
        shared = self.covariance @ of
        gain = shared / (float(of @ shared) + noise**2)
        mean = self.mean + gain * (log - float(of @ self.mean))
        return JointStanding(mean=mean, covariance=self.covariance - np.outer(gain, shared))

    def of(self, one: int) -> Standing:
        """The estimate of one alone."""
        return Standing(
            mean=float(self.mean[one]), deviation=math.sqrt(max(float(self.covariance[one, one]), _LEAST_VARIANCE))
        )

    def behind(self, one: int, other: int) -> tuple[float, float]:
        """How much more one is expected to cost than another, and the standard deviation of that difference."""
        covariance = self.covariance
        variance = covariance[one, one] + covariance[other, other] - 2 * covariance[one, other]
        return float(self.mean[one] - self.mean[other]), math.sqrt(max(float(variance), _LEAST_VARIANCE))
