"""How large the batch of a combination will be, or a part of its memory, learned from those of which it is known.

A method acts on the time of a step in two ways: directly, and by the batch that it leaves room for. The second is
learned here, as a sum of main effects on the log of the largest batch and a Gaussian process for the rest, so that the
first can be told from it (``cost_model``). A method that pays because memory is short does not pay
beside others that have freed it already.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from advisor.search.propose.similarity import similarity, spread
from advisor.search.space.factors import Factors, Floats, Levels

__all__ = ["BATCHES", "BatchModel", "Estimate", "Spreads"]

_LEVEL_DEVIATION = 1.0
"""Prior standard deviation of the log of plain training's batch around the mean of what is known."""

_LEAST_VARIANCE = 1e-12


class Estimate(msgspec.Struct, frozen=True):
    """What is expected of some combinations: the log of each one's cost or largest batch, without measurement noise."""

    mean: Floats
    deviation: Floats


class Spreads(NamedTuple):
    """What is known of logs beforehand.

    Attributes:
        effects: Factor on the prior standard deviations of effects on time.
        interactions: Standard deviation of what is not a sum.
        noise: Standard deviation of what is known of a combination.
    """

    effects: float
    interactions: float
    noise: float


BATCHES = Spreads(effects=2.0, interactions=0.15, noise=0.05)
"""Memory is saved by factors, time by percents. Batches are rounded, and lowered where memory was nearly full."""


class BatchModel:
    """The posterior after some combinations.

    Args:
        factors: The factors of the space.
        levels: The combinations, one row each; at least one.
        logs: The log of the largest batch of each, or of what is learned in its place.
        spreads: What is known of these logs beforehand.
    """

    def __init__(self, factors: Factors, levels: Levels, logs: Floats, spreads: Spreads = BATCHES) -> None:
        assert len(levels) == len(logs) > 0, "one log for each combination"
        self._interactions = spreads.interactions
        self._factors = factors
        self._levels = levels
        self._design = factors.effects(levels)
        self._spread = (spreads.effects * factors.prior_deviation) ** 2
        self._mean = float(np.mean(logs))
        covariance = self._covariance(self._design, levels) + spreads.noise**2 * np.eye(len(levels))
        self._factor: Floats = cho_factor(covariance, lower=True)[0]
        self._weights: Floats = cho_solve((self._factor, True), logs - self._mean)

    def estimate(self, levels: Levels) -> Estimate:
        """What is expected of combinations, one row each."""
        design = self._factors.effects(levels)
        shared = self._covariance(design, levels)
        known = solve_triangular(self._factor, shared.T, lower=True)
        prior = _LEVEL_DEVIATION**2 + design**2 @ self._spread + self._interactions**2 * spread(levels)
        variance = np.maximum(prior - np.sum(known**2, axis=0), _LEAST_VARIANCE)
        return Estimate(self._mean + shared @ self._weights, np.sqrt(variance))

    def _covariance(self, design: Floats, levels: Levels) -> Floats:
        """Of combinations with those that are known."""
        sums = (design * self._spread) @ self._design.T
        alike = similarity(levels, self._levels)
        covariance: Floats = _LEVEL_DEVIATION**2 + sums + self._interactions**2 * alike
        return covariance
