"""What a combination costs, learned from a few that were measured.

Nearly all of the log of the seconds per sample is a sum: each setting makes a step so many percent slower or faster,
whatever the others are. So the model is a sum of main effects with weak priors, plus a Gaussian process for what is not
a sum, which combinations share the more the fewer settings they differ in (Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2006, sections 2.2, 2.7 and 5.4.1; the kernel over categories: Hutter, Xu, Hoos and Leyton-Brown,
Algorithm runtime prediction, 2014, section 4). A sum of main effects is a Gaussian process too, so that both are one
covariance, and the posterior has a closed form.

How large main effects and interactions are is not known beforehand, and five measurements do not tell. So nine guesses
each count as much as they are likely (section 5.2 of the same book): the likeliest alone would be too sure of itself.
"""

from __future__ import annotations

import copy
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

_INTERACTION_DEVIATIONS = (0.02, 0.06, 0.18)
"""Standard deviations of what is not a sum."""

_SHARED_OVER = 2.5
"""Settings after which two combinations share 1/e of what is not a sum."""

_LEAST_VARIANCE = 1e-12
"""Rounding may leave less than nothing of a variance."""

_UNLIKELY = 0.02
"""Guesses of which less is thought are left out."""

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


class _Posterior(msgspec.Struct, frozen=True, kw_only=True):
    """What the measurements say if a guess is right.

    Attributes:
        scales: The guess.
        log_weight: The log of how likely it is, up to a constant.
        factor: Cholesky factor of the covariance of the measurements.
        weights: Its inverse times what surprised in them.
    """

    scales: _Scales
    log_weight: float
    factor: Floats
    weights: Floats


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
        self._noise = noise
        self._design = factors.effects(levels)
        self._distances = differences(levels, levels)
        from_priors = self._design @ factors.prior_mean
        self._level = float(np.mean(logs - from_priors))
        surprise = logs - from_priors - self._level
        guesses = itertools.starmap(_Scales, itertools.product(_EFFECT_SCALES, _INTERACTION_DEVIATIONS))
        posteriors = [self._posterior(scales, surprise) for scales in guesses]
        likeliest = max(posterior.log_weight for posterior in posteriors)
        self._posteriors = [one for one in posteriors if one.log_weight > likeliest + math.log(_UNLIKELY)]

    def estimate(self, levels: Levels) -> Estimate:
        """What is expected of combinations, one row each."""
        design = self._factors.effects(levels)
        distances = differences(levels, self._levels)
        found = [self._estimate(posterior, design, distances) for posterior in self._posteriors]
        log_weights = np.array([posterior.log_weight for posterior in self._posteriors])
        weights = np.exp(log_weights - log_weights.max())
        mean = np.average([one.mean for one in found], axis=0, weights=weights)
        squares = np.average([one.deviation**2 + one.mean**2 for one in found], axis=0, weights=weights)
        deviation = np.sqrt(np.maximum(squares - mean**2, _LEAST_VARIANCE))
        return Estimate(self._level + design @ self._factors.prior_mean + mean, deviation)

    def believing(self, levels: Levels, noise: float) -> CostModel:
        """The model as it will be if combinations turn out just as it expects: as unsure as before, but not of them.

        What is as expected changes no mean, and says nothing for or against any guess of the scales.
        """
        model = copy.copy(self)
        model._levels = np.concatenate([self._levels, levels])
        model._design = self._factors.effects(model._levels)
        model._distances = differences(model._levels, model._levels)
        model._noise = np.concatenate([self._noise, np.full(len(levels), noise)])
        model._posteriors = [
            msgspec.structs.replace(
                posterior,
                factor=model._factor(posterior.scales),
                weights=np.concatenate([posterior.weights, np.zeros(len(levels))]),
            )
            for posterior in self._posteriors
        ]
        return model

    def _factor(self, scales: _Scales) -> Floats:
        """Cholesky factor of the covariance of the measurements."""
        covariance = self._covariance(scales, self._design, self._design, self._distances)
        factor: Floats = cho_factor(covariance + np.diag(self._noise**2), lower=True)[0]
        return factor

    def _posterior(self, scales: _Scales, surprise: Floats) -> _Posterior:
        factor = self._factor(scales)
        weights: Floats = cho_solve((factor, True), surprise)
        evidence = -0.5 * float(surprise @ weights) - float(np.sum(np.log(np.diag(factor))))
        return _Posterior(scales=scales, log_weight=scales.log_prior + evidence, factor=factor, weights=weights)

    def _estimate(self, posterior: _Posterior, design: Floats, distances: Floats) -> Estimate:
        """What one guess makes of combinations: by how much they surprise, and how sure that is."""
        scales = posterior.scales
        shared = self._covariance(scales, design, self._design, distances)
        known = solve_triangular(posterior.factor, shared.T, lower=True)
        spread = (self._factors.prior_deviation * scales.effects) ** 2
        prior_variance = _LEVEL_DEVIATION**2 + design**2 @ spread + scales.interactions**2
        variance = np.maximum(prior_variance - np.sum(known**2, axis=0), _LEAST_VARIANCE)
        return Estimate(shared @ posterior.weights, np.sqrt(variance))

    def _covariance(self, scales: _Scales, some: Floats, others: Floats, distances: Floats) -> Floats:
        sums = (some * (self._factors.prior_deviation * scales.effects) ** 2) @ others.T
        covariance: Floats = _LEVEL_DEVIATION**2 + sums + scales.interactions**2 * np.exp(-distances / _SHARED_OVER)
        return covariance
