"""Predict the cost of combinations from a few measured ones.

The log of the seconds per sample is nearly additive: each setting makes a step some percent slower or faster, whatever
the others are. So the model is a sum of main effects with weak priors plus a Gaussian process for interactions
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2, 2.7 and 5.4.1), whose covariance
grows with the ``similarity`` of combinations. A sum of main effects is a Gaussian process too, so there is a single
covariance, and the posterior has a closed form.

If the batches are known, one cause of interactions is modelled explicitly. A step takes a fixed time and a time per
sample, ``a + b n`` seconds for ``n`` samples, so a sample costs ``b (1 + h / n)`` with ``h = a / b``. A setting has an
effect on ``b``, and another on the fixed time weighted by its share of the step, ``h / (h + n)``: measurements at small
batches say less about large ones, by a known amount. With these effects ``h`` differs between combinations, and so does
the effect of changing it: where checkpointing made samples slow, the launches that compilation saves hardly count. The
cost is therefore expanded around the estimated effects, which are then estimated again, like the mode of a Laplace
approximation (section 3.4 of the same book).

The scales of main effects and interactions are unknown beforehand, as is ``h``, and five measurements do not determine
them. So several guesses are averaged by their likelihood (section 5.2 of the same book): the likeliest alone would be
overconfident. A subset of many measurements is enough to weigh the guesses.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from advisor.search.propose.batch_model import BatchModel, Estimate
from advisor.search.propose.differences import Beside, Differences
from advisor.search.propose.similarity import similarity, spread
from advisor.search.space.factors import Factors, Floats, Levels

__all__ = ["Batches", "CostModel"]

_LEVEL_DEVIATION = 1.0
"""Prior standard deviation of the common level around the mean of the measurements."""

_EFFECT_SCALES = (0.6, 1.0, 1.7)
"""Factors on the prior standard deviations of the main effects."""

_INTERACTION_DEVIATIONS = (0.02, 0.05, 0.1, 0.2)
"""Standard deviations of the interactions within a neighbourhood."""

_USUAL_INTERACTION = 0.05
"""The likeliest value a priori."""

_HALVES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Batches at which half of a step is fixed time, relative to the geometric mean of the measured ones; 0 is a cost that
does not depend on the batch."""

_EXPANSIONS = 2
"""Number of times the cost is expanded around the estimated effects."""

_MOST_ON_OVERHEAD = 3.0
"""Log of the largest effect assumed of settings on a step's fixed time, beyond that on the time per sample."""

_LEAST_VARIANCE = 1e-12
"""Smallest variance: rounding may make one negative."""

_UNLIKELY = 0.02
"""Less likely guesses are dropped."""

_ENOUGH_FOR_SCALES = 160
"""Most measurements used to weigh the guesses; of more, an evenly spaced subset."""

_DOUBT_OF_SCALE = math.log(2.5)
"""Prior spread of the scales around the middle one, as a factor."""


class Batches(msgspec.Struct, frozen=True):
    """The batches of the measurements.

    Attributes:
        logs: Log of the batch of each measurement.
        largest: Log of the largest batch of each combination, at which it would be tried.
    """

    logs: Floats
    largest: Floats


class _Scales(msgspec.Struct, frozen=True):
    """One guess at the scales of effects."""

    effects: float
    interactions: float
    half: float

    @property
    def log_prior(self) -> float:
        """Log prior of the guess, up to a constant."""
        off = (math.log(self.effects), math.log(self.interactions / _USUAL_INTERACTION))
        return -0.5 * sum((one / _DOUBT_OF_SCALE) ** 2 for one in off)

    def overhead(self, points: _Points) -> Floats:
        """Share of a step that is fixed time, for each combination at its batch."""
        half = self.half * np.exp(points.shift)
        share: Floats = half / (half + np.exp(points.log_batches))
        return share


class _Points(msgspec.Struct, frozen=True):
    """Combinations as the covariance sees them, one row each.

    Attributes:
        levels: Their levels.
        design: Their main effects.
        log_batches: Log of their batches; zeros if unknown.
        shift: Log of the estimated effect of their settings on a step's fixed time, beyond that on a sample's.
    """

    levels: Levels
    design: Floats
    log_batches: Floats
    shift: Floats

    def those(self, numbers: npt.NDArray[np.intp]) -> _Points:
        """Select rows."""
        return _Points(self.levels[numbers], self.design[numbers], self.log_batches[numbers], self.shift[numbers])


class _Posterior(msgspec.Struct, frozen=True, kw_only=True):
    """The posterior under one guess.

    Attributes:
        log_weight: Log likelihood of the guess, up to a constant.
        factor: Cholesky factor of the covariance of the measurements.
        weights: Inverse covariance times the residuals.
    """

    scales: _Scales
    log_weight: float
    level: float
    factor: Floats
    weights: Floats


class CostModel:
    """The posterior after some measurements.

    Args:
        factors: The factors of the space.
        levels: The measured combinations, one row each; at least one.
        logs: Log of the cost of each.
        noise: Standard deviation of each log between repeated measurements.
        batches: Their batches, if all are known.
        beside: For measurements of a combination in turn with another: the other. Their logs are of the ratio.
    """

    def __init__(
        self,
        factors: Factors,
        levels: Levels,
        logs: Floats,
        noise: Floats,
        batches: Batches | None = None,
        beside: Beside | None = None,
    ) -> None:
        assert len(levels) == len(logs) == len(noise) > 0, "one log and one noise for each measurement"
        assert np.isfinite(logs).all(), "the log of a cost is a number"
        assert (noise > 0).all(), "every measurement has noise"
        self._factors = factors
        self._noise = noise
        self._batches = None if batches is None else BatchModel(factors, levels, batches.largest)
        log_batches = np.zeros(len(levels)) if batches is None else batches.logs
        self._on_overhead = np.zeros(len(factors.prior_mean))
        self._said, levels, log_batches = Differences.among(levels, log_batches, beside)
        self._known = self._points(levels, log_batches)
        self._alike = similarity(levels, levels)
        halves = (0.0,) if batches is None else tuple(np.exp(batches.logs.mean()) * one for one in _HALVES)
        if batches is not None:
            self._learn_overheads([_Scales(1.0, _USUAL_INTERACTION, half) for half in halves], logs)
        self._posteriors = self._likely(
            itertools.starmap(_Scales, itertools.product(_EFFECT_SCALES, _INTERACTION_DEVIATIONS, halves)), logs
        )

    def estimate(self, levels: Levels) -> Estimate:
        """Predict combinations, one row each, at their largest batches."""
        batch = self._batch_of(levels)
        points = self._points(levels, batch.mean)
        alike = similarity(levels, self._known.levels)
        found = [self._estimate(posterior, points, alike, batch.deviation) for posterior in self._posteriors]
        log_weights = np.array([posterior.log_weight for posterior in self._posteriors])
        weights = np.exp(log_weights - log_weights.max())
        mean = np.average([one.mean for one in found], axis=0, weights=weights)
        squares = np.average([one.deviation**2 + one.mean**2 for one in found], axis=0, weights=weights)
        deviation = np.sqrt(np.maximum(squares - mean**2, _LEAST_VARIANCE))
        return Estimate(points.design @ self._factors.prior_mean + mean, deviation)

    def joint(self, levels: Levels, log_batches: Floats) -> tuple[Floats, Floats]:
        """Predict combinations at given batches together: the mean of each log, and the covariance of all."""
        points = self._points(levels, log_batches)
        alike, own = (similarity(levels, others) for others in (self._known.levels, levels))
        np.fill_diagonal(own, spread(levels))
        found = [self._jointly(posterior, points, alike, own) for posterior in self._posteriors]
        log_weights = np.array([posterior.log_weight for posterior in self._posteriors])
        weights = np.exp(log_weights - log_weights.max())
        mean: Floats = np.average([mean for mean, _ in found], axis=0, weights=weights)
        products = [covariance + np.outer(one - mean, one - mean) for one, covariance in found]
        covariance: Floats = np.average(products, axis=0, weights=weights)
        return points.design @ self._factors.prior_mean + mean, covariance

    def believing(self, levels: Levels, noise: float) -> CostModel:
        """The model after combinations turned out exactly as predicted, which lowers their uncertainty alone.

        An expected outcome changes no mean, and is no evidence about the scales.
        """
        model = copy.copy(self)
        model._said = self._said.and_points(len(self._known.levels), len(levels))
        every = np.concatenate([self._known.levels, levels])
        log_batches = np.concatenate([self._known.log_batches, self._batch_of(levels).mean])
        model._known = self._points(every, log_batches)
        model._alike = similarity(every, every)
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

    def _learn_overheads(self, guesses: Sequence[_Scales], logs: Floats) -> None:
        """Expand the cost around the likeliest guess's effects on a step's fixed time."""
        likeliest = max(self._likely(guesses, logs), key=lambda one: one.log_weight)
        variance = (self._factors.prior_deviation * likeliest.scales.effects) ** 2
        for _ in range(_EXPANSIONS):
            share = likeliest.scales.overhead(self._known)
            found = variance * (self._known.design.T @ (share * self._said.to_points(likeliest.weights, len(share))))
            self._on_overhead = np.clip(found, -_MOST_ON_OVERHEAD, _MOST_ON_OVERHEAD)
            self._known = self._points(self._known.levels, self._known.log_batches)
            likeliest = self._posterior(likeliest.scales, logs)

    def _likely(self, guesses: Iterable[_Scales], logs: Floats) -> list[_Posterior]:
        """The posteriors of the guesses that are likely."""
        if len(logs) <= _ENOUGH_FOR_SCALES:
            return _without_unlikely([self._posterior(scales, logs) for scales in guesses])
        some = np.linspace(0, len(logs) - 1, _ENOUGH_FOR_SCALES).astype(np.intp)
        model = copy.copy(self)
        model._said, needed = self._said.those(some)
        model._known = self._known.those(needed)
        model._alike = self._alike[np.ix_(needed, needed)]
        model._noise = self._noise[some]
        return [
            msgspec.structs.replace(self._posterior(one.scales, logs), log_weight=one.log_weight)
            for one in model._likely(guesses, logs[some])
        ]

    def _points(self, levels: Levels, log_batches: Floats) -> _Points:
        """Combinations at batches."""
        design = self._factors.effects(levels)
        shift = np.clip(design @ self._on_overhead, -_MOST_ON_OVERHEAD, _MOST_ON_OVERHEAD)
        return _Points(levels, design, log_batches, shift)

    def _batch_of(self, levels: Levels) -> Estimate:
        if self._batches is None:
            return Estimate(np.zeros(len(levels)), np.zeros(len(levels)))
        return self._batches.estimate(levels)

    def _factor(self, scales: _Scales) -> Floats:
        """Cholesky factor of the covariance of the measurements."""
        covariance = self._said.of(self._said.of(self._covariance(scales, self._known, self._alike)).T)
        factor: Floats = cho_factor(covariance + np.diag(self._noise**2), lower=True)[0]
        return factor

    @staticmethod
    def _own_time(scales: _Scales, points: _Points) -> Floats:
        """What a step's fixed time adds to the log of the cost without effects on it.

        This is the tangent at the estimated effects, linear in their error.
        """
        share = scales.overhead(points)
        added: Floats = -np.log1p(-share) - share * points.shift
        return added

    def _posterior(self, scales: _Scales, logs: Floats) -> _Posterior:
        factor = self._factor(scales)
        at_points = self._known.design @ self._factors.prior_mean + self._own_time(scales, self._known)
        expected = self._said.of(at_points)
        level = float(np.mean((logs - expected)[self._said.absolute]))
        surprise = logs - expected - np.where(self._said.absolute, level, 0.0)
        weights: Floats = cho_solve((factor, True), surprise)
        evidence = -0.5 * float(surprise @ weights) - float(np.sum(np.log(np.diag(factor))))
        log_weight = scales.log_prior + evidence
        return _Posterior(scales=scales, log_weight=log_weight, level=level, factor=factor, weights=weights)

    def _estimate(self, posterior: _Posterior, points: _Points, alike: Floats, doubt_of_batch: Floats) -> Estimate:
        """Predict combinations under one guess, relative to what their settings declare."""
        scales = posterior.scales
        overhead = scales.overhead(points)
        shared = self._said.of(self._covariance(scales, points, alike).T).T
        known = solve_triangular(posterior.factor, shared.T, lower=True)
        of_effects = points.design**2 @ (self._factors.prior_deviation * scales.effects) ** 2
        prior_variance = (
            _LEVEL_DEVIATION**2 + of_effects * (1 + overhead**2) + scales.interactions**2 * spread(points.levels)
        )
        variance = np.maximum(prior_variance - np.sum(known**2, axis=0), _LEAST_VARIANCE)
        # The derivative of log(1 + h / n) by log n is the share of overhead.
        variance = variance + (overhead * doubt_of_batch) ** 2
        mean = posterior.level + self._own_time(scales, points) + shared @ posterior.weights
        return Estimate(mean, np.sqrt(variance))

    def _jointly(self, posterior: _Posterior, points: _Points, alike: Floats, own: Floats) -> tuple[Floats, Floats]:
        """Mean and covariance of combinations under one guess, relative to what their settings declare."""
        shared = self._said.of(self._covariance(posterior.scales, points, alike).T).T
        known = solve_triangular(posterior.factor, shared.T, lower=True)
        mean = posterior.level + self._own_time(posterior.scales, points) + shared @ posterior.weights
        covariance: Floats = self._covariance(posterior.scales, points, own, points) - known.T @ known
        return mean, covariance

    def _covariance(self, scales: _Scales, points: _Points, alike: Floats, others: _Points | None = None) -> Floats:
        """Covariance of combinations with the measured ones, or with others."""
        others = self._known if others is None else others
        sums = (points.design * (self._factors.prior_deviation * scales.effects) ** 2) @ others.design.T
        overhead = np.outer(scales.overhead(points), scales.overhead(others))
        covariance: Floats = _LEVEL_DEVIATION**2 + sums * (1 + overhead) + scales.interactions**2 * alike
        return covariance


def _without_unlikely(posteriors: list[_Posterior]) -> list[_Posterior]:
    likeliest = max(posterior.log_weight for posterior in posteriors)
    return [one for one in posteriors if one.log_weight > likeliest + math.log(_UNLIKELY)]
