"""How large the batch of a combination will be, learned from the combinations of which it is known.

A method acts on the time of a step in two ways: directly, and by the batch that it leaves room for. The second is
learned here, as a sum of main effects on the log of the largest batch and a Gaussian process for the rest, so that the
first can be told from it (``cost_model``). A method that pays because memory is short does not pay
beside others that have freed it already.
"""

from __future__ import annotations

import msgspec
import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from advisor.search.propose.similarity import similarity, spread
from advisor.search.space.factors import Factors, Floats, Levels

__all__ = ["BatchModel", "Estimate"]

_LEVEL_DEVIATION = 1.0
"""Prior standard deviation of the log of plain training's batch around the mean of what is known."""

_EFFECT_SCALE = 2.0
"""Factor on the prior standard deviations of effects on time: memory is saved by factors, time by percents."""

_INTERACTION_DEVIATION = 0.15
"""Standard deviation of what is not a sum."""

_NOISE = 0.05
"""Batches are rounded, and lowered where memory was nearly full."""

_LEAST_VARIANCE = 1e-12


class Estimate(msgspec.Struct, frozen=True):
    """What is expected of some combinations: the log of each one's cost or largest batch, without measurement noise."""

    mean: Floats
    deviation: Floats


class BatchModel:
    """The posterior after some combinations.

    Args:
        factors: The factors of the space.
        levels: The combinations, one row each; at least one.
        logs: The log of the largest batch of each.
    """

    def __init__(self, factors: Factors, levels: Levels, logs: Floats) -> None:
        assert len(levels) == len(logs) > 0, "one batch for each combination"
        self._factors = factors
        self._levels = levels
        self._design = factors.effects(levels)
        self._spread = (_EFFECT_SCALE * factors.prior_deviation) ** 2
        self._mean = float(np.mean(logs))
        covariance = self._covariance(self._design, levels) + _NOISE**2 * np.eye(len(levels))
        self._factor: Floats = cho_factor(covariance, lower=True)[0]
        self._weights: Floats = cho_solve((self._factor, True), logs - self._mean)

    def estimate(self, levels: Levels) -> Estimate:
        """What is expected of combinations, one row each."""
        design = self._factors.effects(levels)
        shared = self._covariance(design, levels)
        known = solve_triangular(self._factor, shared.T, lower=True)
        prior = _LEVEL_DEVIATION**2 + design**2 @ self._spread + _INTERACTION_DEVIATION**2 * spread(levels)
        variance = np.maximum(prior - np.sum(known**2, axis=0), _LEAST_VARIANCE)
        return Estimate(self._mean + shared @ self._weights, np.sqrt(variance))

    def _covariance(self, design: Floats, levels: Levels) -> Floats:
        """Of combinations with those that are known."""
        sums = (design * self._spread) @ self._design.T
        alike = similarity(levels, self._levels)
        covariance: Floats = _LEVEL_DEVIATION**2 + sums + _INTERACTION_DEVIATION**2 * alike
        return covariance
