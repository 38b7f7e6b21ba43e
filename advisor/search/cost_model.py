"""What a combination costs, learned from a few that were measured.

Nearly all of the log of the seconds per sample is a sum: each setting makes a step so many percent slower or faster,
whatever the others are. So the model is a sum of main effects with weak priors, plus a Gaussian process for what is not
a sum, which combinations share the more the fewer settings they differ in (Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2006, sections 2.2, 2.7 and 5.4.1; the kernel over categories: Hutter, Xu, Hoos and Leyton-Brown,
Algorithm runtime prediction, 2014, section 4). A sum of main effects is a Gaussian process too, so that both are one
covariance, and the posterior has a closed form.

How large main effects and interactions are is not known beforehand. Of a few scales the likeliest is taken: a search
over a grid of nine cannot run away with five measurements, as an optimizer of the likelihood does.
"""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from advisor.search.factors import Factors, Floats, Levels, differences

__all__ = ["CostModel", "Estimate"]

_LEVEL_DEVIATION = 1.0
"""Prior standard deviation of the common level around the mean of what was measured."""

_EFFECT_SCALES = (0.6, 1.0, 1.7)
"""Factors on the prior standard deviations of the main effects."""

_INTERACTION_DEVIATIONS = (0.015, 0.04, 0.1)
"""Standard deviations of what is not a sum."""

_SHARED_OVER = 2.5
"""Settings after which two combinations share 1/e of what is not a sum."""

_DOUBT_OF_SCALE = math.log(2.5)
"""Scales are held to be off the middle one by a factor like this before anything is known."""


class Estimate(msgspec.Struct, frozen=True):
    """What is expected of some combinations.

    Attributes:
        mean: Expected log of the cost, one for each.
        deviation: Its standard deviation, measurement noise not included.
    """

    mean: Floats
    deviation: Floats


class _Scales(msgspec.Struct, frozen=True):
    """One guess at how large effects are.

    Attributes:
        effects: Factor on the prior standard deviations of the main effects.
        interactions: Standard deviation of what is not a sum.
    """

    effects: float
    interactions: float

    @property
    def log_prior(self) -> float:
        """The log of how likely the guess is beforehand, up to a constant."""
        off = (math.log(self.effects), math.log(self.interactions / _INTERACTION_DEVIATIONS[1]))
        return -0.5 * sum((one / _DOUBT_OF_SCALE) ** 2 for one in off)


class CostModel:
    """The posterior after some measurements.

    Args:
        factors: The factors of the space.
        levels: What was measured, one row each; at least one.
        logs: The log of the cost of each.
        noise: Standard deviation of each of these, as far as measuring it again would change it.
    """

    def __init__(self, factors: Factors, levels: Levels, logs: Floats, noise: Floats) -> None:
        assert len(levels) == len(logs) == len(noise) > 0, "one log and one noise for each measurement"
        assert np.isfinite(logs).all(), "the log of a cost is a number"
        assert (noise > 0).all(), "every measurement has noise"
        self._factors = factors
        self._levels = levels
        self._design = factors.effects(levels)
        self._distances = differences(levels, levels)
        from_priors = self._design @ factors.prior_mean
        self._level = float(np.mean(logs - from_priors))
        surprise = logs - from_priors - self._level
        guesses = itertools.starmap(_Scales, itertools.product(_EFFECT_SCALES, _INTERACTION_DEVIATIONS))
        _, self._scales, self._factor = max(
            (self._likelihood(scales, surprise, noise) for scales in guesses), key=lambda found: found[0]
        )
        self._weights: Floats = cho_solve((self._factor, True), surprise)

    def estimate(self, levels: Levels) -> Estimate:
        """What is expected of combinations, one row each."""
        design = self._factors.effects(levels)
        shared = self._covariance(self._scales, design, self._design, differences(levels, self._levels))
        known = solve_triangular(self._factor, shared.T, lower=True)
        spread = (self._factors.prior_deviation * self._scales.effects) ** 2
        prior_variance = _LEVEL_DEVIATION**2 + design**2 @ spread + self._scales.interactions**2
        mean = self._level + design @ self._factors.prior_mean + shared @ self._weights
        return Estimate(mean, np.sqrt(np.maximum(prior_variance - np.sum(known**2, axis=0), 1e-12)))

    def _likelihood(self, scales: _Scales, surprise: Floats, noise: Floats) -> tuple[float, _Scales, Floats]:
        """The log of the posterior of some scales up to a constant, and the Cholesky factor that came with it."""
        covariance = self._covariance(scales, self._design, self._design, self._distances)
        factor, _ = cho_factor(covariance + np.diag(noise**2), lower=True)
        fit = float(surprise @ cho_solve((factor, True), surprise))
        return scales.log_prior - 0.5 * fit - float(np.sum(np.log(np.diag(factor)))), scales, factor

    def _covariance(self, scales: _Scales, some: Floats, others: Floats, distances: Floats) -> Floats:
        sums = (some * (self._factors.prior_deviation * scales.effects) ** 2) @ others.T
        covariance: Floats = _LEVEL_DEVIATION**2 + sums + scales.interactions**2 * np.exp(-distances / _SHARED_OVER)
        return covariance
