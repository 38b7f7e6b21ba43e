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

A few large effects are neither sums nor small: :mod:`~advisor.search.propose.sparse_effects` gives those that the
measurements speak for a variance of their own, under each guess at the scales.

The scales of main effects and interactions are unknown beforehand, as is ``h``, and five measurements do not determine
them. So several guesses are averaged by their likelihood (section 5.2 of the same book): the likeliest alone would be
overconfident. A subset of many measurements is enough to weigh the guesses.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from advisor.search.propose.batch_model import BatchModel, Estimate
from advisor.search.propose.differences import Beside, Differences
from advisor.search.propose.posterior import (
    LargeOf,
    Points,
    Posterior,
    Scales,
    Suspected,
    guesses,
    likeliest_halves,
    weights_of,
    without_unlikely,
)
from advisor.search.propose.room_model import RoomModel
from advisor.search.propose.similarity import similarity, spread
from advisor.search.propose.sparse_effects import SparseEffects, Suspicions
from advisor.search.space.factors import Factors, Floats, Levels

__all__ = ["Batches", "CostModel"]

_LEVEL_DEVIATION = 1.0
"""Prior standard deviation of the common level around the mean of the measurements."""

_HALVES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Batches at which half of a step is fixed time, relative to the geometric mean of the measured ones; 0 is a cost that
does not depend on the batch."""

_EXPANSIONS = 2
"""Number of times the cost is expanded around the estimated effects, without large effects and with them."""

_MOST_ON_OVERHEAD = 3.0
"""Log of the largest effect assumed of settings on a step's fixed time, beyond that on the time per sample."""

_LEAST_VARIANCE = 1e-12
"""Smallest variance: rounding may make one negative."""

_ENOUGH_FOR_SCALES = 160
"""Most measurements used to weigh the guesses; of more, an evenly spaced subset."""

_AT_ONCE = 20_000
"""Pairs of settings in points that are looked at together: more would take much memory."""


class Batches(msgspec.Struct, frozen=True):
    """The batches of the measurements.

    Attributes:
        logs: Log of the batch of each measurement.
        largest: Log of the largest batch of each combination, at which it would be tried.
    """

    logs: Floats
    largest: Floats


class CostModel:
    """The posterior after some measurements.

    Args:
        factors: The factors of the space.
        levels: The measured combinations, one row each; at least one.
        logs: Log of the cost of each.
        noise: Standard deviation of each log between repeated measurements.
        batches: Their batches, if all are known.
        beside: For measurements of a combination in turn with another: the other. Their logs are of the ratio.
        room: What memory has room for, if that decides the batches; else they are learned from the known ones.
    """

    def __init__(
        self,
        factors: Factors,
        levels: Levels,
        logs: Floats,
        noise: Floats,
        batches: Batches | None = None,
        beside: Beside | None = None,
        room: RoomModel | None = None,
    ) -> None:
        assert len(levels) == len(logs) == len(noise) > 0, "one log and one noise for each measurement"
        assert np.isfinite(logs).all(), "the log of a cost is a number"
        assert (noise > 0).all(), "every measurement has noise"
        self._factors = factors
        self._noise = noise
        self._batches: BatchModel | RoomModel | None = room
        if batches is None or room is None:
            self._batches = None if batches is None else BatchModel(factors, levels, batches.largest)
        log_batches = np.zeros(len(levels)) if batches is None else batches.logs
        self._on_overhead = np.zeros(len(factors.prior_mean))
        self._said, levels, log_batches = Differences.among(levels, log_batches, beside)
        self._known = self._points(levels, log_batches)
        self._alike = similarity(levels, levels)
        self._suspicions: Suspicions | None = None
        self._sparse = SparseEffects(factors, levels, None if batches is None else log_batches, self._said)
        halves = (0.0,) if batches is None else tuple(np.exp(batches.logs.mean()) * one for one in _HALVES)
        if batches is not None:
            self._learn_overheads([Scales.usual(half) for half in halves], logs)
        self._posteriors = self._likely(guesses(halves), logs)

    def estimate(self, levels: Levels) -> Estimate:
        """Predict combinations, one row each, at their largest batches."""
        batch = self._batch_of(levels)
        points = self._points(levels, batch.mean)
        alike = similarity(levels, self._known.levels)
        large = self._large_of(levels, batch.mean, batch.deviation)
        found = [self._estimate(posterior, points, alike, large, batch.deviation) for posterior in self._posteriors]
        weights = weights_of(self._posteriors)
        mean = np.average([one.mean for one in found], axis=0, weights=weights)
        squares = np.average([one.deviation**2 + one.mean**2 for one in found], axis=0, weights=weights)
        deviation = np.sqrt(np.maximum(squares - mean**2, _LEAST_VARIANCE))
        return Estimate(points.design @ self._factors.prior_mean + mean, deviation)

    def joint(self, levels: Levels, log_batches: Floats) -> tuple[Floats, Floats]:
        """Predict combinations at given batches together: the mean of each log, and the covariance of all."""
        points = self._points(levels, log_batches)
        alike, own = (similarity(levels, others) for others in (self._known.levels, levels))
        np.fill_diagonal(own, spread(levels))
        large = self._large_of(levels, log_batches)
        found = [self._jointly(posterior, points, alike, own, large) for posterior in self._posteriors]
        weights = weights_of(self._posteriors)
        mean: Floats = np.average([mean for mean, _ in found], axis=0, weights=weights)
        products = [covariance + np.outer(one - mean, one - mean) for one, covariance in found]
        covariance: Floats = np.average(products, axis=0, weights=weights)
        return points.design @ self._factors.prior_mean + mean, covariance

    def suspected(self, levels: Levels) -> Suspected:
        """What a large interaction that the model does not have may do to some points, under the likeliest guess."""
        likeliest = max(self._posteriors, key=lambda one: one.log_weight)
        if self._suspicions is None:
            self._suspicions = self._sparse.suspicions(likeliest.factor, likeliest.residuals, likeliest.large)
        found = self._suspicions
        rows, one, other = self._factors.pairs_of(levels)
        some = found.chance[one, other] > 0
        rows, one, other = rows[some], one[some], other[some]
        # The model has seen a part of an effect at measurements that resemble the point: only the rest is new.
        unseen = np.ones(len(rows))
        shown = np.flatnonzero(found.row[one, other] >= 0)
        if len(shown):
            batch = self._batch_of(levels)
            shared = self._shared(
                likeliest,
                self._points(levels, batch.mean),
                similarity(levels, self._known.levels),
                self._large_of(levels, batch.mean, batch.deviation),
            )
            for part in np.array_split(shown, math.ceil(len(shown) / _AT_ONCE)):
                known = found.known[found.row[one[part], other[part]]]
                unseen[part] -= np.einsum("en,en->e", shared[rows[part]], known)
        return Suspected(
            rows,
            one,
            other,
            found.chance[one, other],
            unseen * found.mean[one, other],
            np.abs(unseen) * found.deviation[one, other],
        )

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
        model._sparse = self._sparse.and_points(levels, log_batches[-len(levels) :])
        model._suspicions = None
        model._noise = np.concatenate([self._noise, np.full(len(levels), noise)])
        model._posteriors = [
            msgspec.structs.replace(
                posterior,
                factor=model._factor(posterior.scales, posterior.large),
                residuals=np.concatenate([posterior.residuals, np.zeros(len(levels))]),
                weights=np.concatenate([posterior.weights, np.zeros(len(levels))]),
            )
            for posterior in self._posteriors
        ]
        return model

    def _learn_overheads(self, some: Sequence[Scales], logs: Floats) -> None:
        """Expand the cost around the likeliest guess's effects on a step's fixed time.

        What begins at a batch looks like a fixed time. Large effects that are still likely at the estimates come later.
        """
        likeliest = max((self._posterior(one, logs) for one in some), key=lambda one: one.log_weight)
        variance = (self._factors.prior_deviation * likeliest.scales.effects) ** 2
        for with_large in [False] * _EXPANSIONS + [True] * _EXPANSIONS:
            share = likeliest.scales.overhead(self._known)
            found = variance * (self._known.design.T @ (share * self._said.to_points(likeliest.weights, len(share))))
            self._on_overhead = np.clip(found, -_MOST_ON_OVERHEAD, _MOST_ON_OVERHEAD)
            self._known = self._points(self._known.levels, self._known.log_batches)
            plain = self._posterior(likeliest.scales, logs)
            likeliest = self._with_large(plain, logs) if with_large else plain

    def _likely(self, scales: Iterable[Scales], logs: Floats) -> list[Posterior]:
        """The posteriors of the guesses that are likely."""
        if len(logs) <= _ENOUGH_FOR_SCALES:
            plain = [self._posterior(one, logs) for one in scales]
            halves = likeliest_halves(plain)
            large = (self._with_large(one, logs) if one.scales.half in halves else one for one in plain)
            return without_unlikely(list(large))
        some = np.linspace(0, len(logs) - 1, _ENOUGH_FOR_SCALES).astype(np.intp)
        model = copy.copy(self)
        model._said, needed = self._said.those(some)
        model._known = self._known.those(needed)
        model._alike = self._alike[np.ix_(needed, needed)]
        model._noise = self._noise[some]
        model._sparse = self._sparse.those(some)
        return [
            msgspec.structs.replace(self._posterior(one.scales, logs, one.large), log_weight=one.log_weight)
            for one in model._likely(scales, logs[some])
        ]

    def _with_large(self, plain: Posterior, logs: Floats) -> Posterior:
        """The posterior of a guess with the large effects that it needs."""
        found = self._sparse.find(plain.factor, plain.residuals, lambda large: self._factor(plain.scales, large))
        posterior = self._posterior(plain.scales, logs, found.variances) if found.variances.any() else plain
        return msgspec.structs.replace(posterior, log_weight=plain.log_weight + found.log_evidence)

    def _large_of(self, levels: Levels, log_batches: Floats, deviation: Floats | None = None) -> LargeOf | None:
        """The large effects of points, under any guess; ``None`` if there are none."""
        only = np.flatnonzero(np.any([one.large > 0 for one in self._posteriors], axis=0))
        return LargeOf(only, self._sparse.features(levels, log_batches, deviation, only)) if len(only) else None

    def _points(self, levels: Levels, log_batches: Floats) -> Points:
        """Combinations at batches."""
        design = self._factors.effects(levels)
        shift = np.clip(design @ self._on_overhead, -_MOST_ON_OVERHEAD, _MOST_ON_OVERHEAD)
        return Points(levels, design, log_batches, shift)

    def _batch_of(self, levels: Levels) -> Estimate:
        if self._batches is None:
            return Estimate(np.zeros(len(levels)), np.zeros(len(levels)))
        return self._batches.estimate(levels)

    def _factor(self, scales: Scales, large: Floats | None = None) -> Floats:
        """Cholesky factor of the covariance of the measurements."""
        covariance = self._said.of(self._said.of(self._covariance(scales, self._known, self._alike)).T)
        if large is not None and large.any():
            covariance = covariance + self._sparse.covariance(large)
        factor: Floats = cho_factor(covariance + np.diag(self._noise**2), lower=True)[0]
        return factor

    def _posterior(self, scales: Scales, logs: Floats, large: Floats | None = None) -> Posterior:
        large = np.zeros(self._sparse.count) if large is None else large
        factor = self._factor(scales, large)
        at_points = self._known.design @ self._factors.prior_mean + scales.own_time(self._known)
        expected = self._said.of(at_points)
        level = float(np.mean((logs - expected)[self._said.absolute]))
        residuals = logs - expected - np.where(self._said.absolute, level, 0.0)
        weights: Floats = cho_solve((factor, True), residuals)
        evidence = -0.5 * float(residuals @ weights) - float(np.sum(np.log(np.diag(factor))))
        return Posterior(
            scales=scales,
            log_weight=scales.log_prior + evidence,
            level=level,
            factor=factor,
            residuals=residuals,
            weights=weights,
            large=large,
        )

    def _estimate(
        self,
        posterior: Posterior,
        points: Points,
        alike: Floats,
        large: LargeOf | None,
        doubt_of_batch: Floats,
    ) -> Estimate:
        """Predict combinations under one guess, relative to what their settings declare."""
        scales = posterior.scales
        overhead = scales.overhead(points)
        shared = self._shared(posterior, points, alike, large)
        known = solve_triangular(posterior.factor, shared.T, lower=True)
        of_effects = points.design**2 @ (self._factors.prior_deviation * scales.effects) ** 2
        prior_variance = (
            _LEVEL_DEVIATION**2 + of_effects * (1 + overhead**2) + scales.interactions**2 * spread(points.levels)
        )
        if large is not None:
            prior_variance = prior_variance + large.values @ posterior.large[large.only]
        variance = np.maximum(prior_variance - np.sum(known**2, axis=0), _LEAST_VARIANCE)
        # The derivative of log(1 + h / n) by log n is the share of overhead.
        variance = variance + (overhead * doubt_of_batch) ** 2
        mean = posterior.level + scales.own_time(points) + shared @ posterior.weights
        return Estimate(mean, np.sqrt(variance))

    def _jointly(
        self, posterior: Posterior, points: Points, alike: Floats, own: Floats, large: LargeOf | None
    ) -> tuple[Floats, Floats]:
        """Mean and covariance of combinations under one guess, relative to what their settings declare."""
        shared = self._shared(posterior, points, alike, large)
        known = solve_triangular(posterior.factor, shared.T, lower=True)
        mean = posterior.level + posterior.scales.own_time(points) + shared @ posterior.weights
        prior = self._covariance(posterior.scales, points, own, points)
        if large is not None:
            prior = prior + (large.values * posterior.large[large.only]) @ large.values.T
        covariance: Floats = prior - known.T @ known
        return mean, covariance

    def _shared(self, posterior: Posterior, points: Points, alike: Floats, large: LargeOf | None) -> Floats:
        """Covariance of points with the measurements."""
        shared: Floats = self._said.of(self._covariance(posterior.scales, points, alike).T).T
        if large is not None:
            shared = shared + self._sparse.shared(large.values, posterior.large, large.only)
        return shared

    def _covariance(self, scales: Scales, points: Points, alike: Floats, others: Points | None = None) -> Floats:
        """Covariance of combinations with the measured ones, or with others."""
        others = self._known if others is None else others
        sums = (points.design * (self._factors.prior_deviation * scales.effects) ** 2) @ others.design.T
        overhead = np.outer(scales.overhead(points), scales.overhead(others))
        covariance: Floats = _LEVEL_DEVIATION**2 + sums * (1 + overhead) + scales.interactions**2 * alike
        return covariance
