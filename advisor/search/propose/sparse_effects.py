"""A few large effects that a sum of main effects and small interactions does not have.

Most settings act alike in whatever combination they are used. A few do not: two only pay together, or one pays only
from some batch on. A Gaussian process that allows for that anywhere takes a large interaction for noise, or, once it
believes in it, expects interactions everywhere. So each possible large effect has a variance of its own, which is zero
until measurements speak for it: a spike and a slab (Mitchell and Beauchamp, Bayesian variable selection in linear
regression, 1988; George and McCulloch, Variable selection via Gibbs sampling, 1993). The candidates are

- every pair of settings that was measured,
- every setting, and all of them, from a power of two on as batch, where both sides of it were measured,
- every measured combination of three settings or more, for how these act together.

Candidates are judged one after the other: the likelihood of each, times the prior, gives the probability that it is the
next large effect, and that share of the slab's variance. What the measurements cannot tell apart shares the suspicion
until another one tells it apart.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import ndtr

from advisor.search.propose.differences import Differences
from advisor.search.space.factors import Factors, Floats, Levels, Numbers

__all__ = ["DEVIATION", "Large", "SparseEffects", "Suspicions"]

DEVIATION = 0.3
"""Standard deviation of a large effect on the log of the cost."""

_PAIRS = 1.0
"""Number of pairs that are expected to have one, in a space of many."""

_FEW_PAIRS = 30
"""In a space of this many pairs, half as many."""

_CLIFFS = 1.0
"""Number of settings that are expected to act differently from some batch on, of many candidates."""

_FEW_CLIFFS = 30
"""Of this many candidates, half as many."""

_COMBINATIONS = 0.3
"""Number of measured combinations that are expected to have a large effect of their own."""

_OF_SEVERAL = 3
"""Settings of a combination from which on it may have one: of fewer, main effects and pairs tell everything."""

_MOST = 3
"""Most large effects, or groups of them that cannot be told apart."""

_LEAST_EVIDENCE = 0.3
"""Probability of another one, relative to that of none, below which there is none; nor is there if the measurements
make it less likely than it was."""

_NEGLIGIBLE = 0.02
"""Candidates with a smaller probability have no variance."""

_LARGEST_LOG = 600.0
"""Its exponential is finite."""

_ANY = -1
"""Column of a cliff that all combinations share."""

_EXPONENTS = range(1, 16)
"""Logs to base 2 of the batches looked at."""

_SHARP = 0.02
"""Smallest uncertainty of the log of a batch."""

Pair = tuple[tuple[int, int], tuple[int, int]]
"""Two settings, each a column and a level."""

Cliff = tuple[int, int, int]
"""Column and level of a setting, and the log of a batch to base 2."""


class Large(NamedTuple):
    """The large effects that measurements speak for.

    Attributes:
        variances: Of each candidate.
        log_evidence: Log of how much likelier the measurements are with them.
    """

    variances: Floats
    log_evidence: float


class Suspicions(NamedTuple):
    """What is known of a large interaction of each pair of settings.

    Square matrices; rows and columns are settings, numbered from :attr:`Factors.first_number` on.

    Attributes:
        chance: Probability that there is one that the model does not have yet; above the diagonal only.
        mean: Its mean if there is one.
        deviation: Its standard deviation if there is one.
        known: For pairs that were measured, the inverse covariance of the measurements times what they show of the
            pair: a row each.
        row: The row of each pair in ``known``; -1 if it was never measured.
    """

    chance: Floats
    mean: Floats
    deviation: Floats
    known: Floats
    row: Numbers


class SparseEffects:
    """The candidates of some measurements.

    Args:
        factors: The factors of the space.
        levels: The measured points, partners in turn included; one row each.
        log_batches: Log of the batch of each point; ``None`` if unknown.
        said: How measurements follow from points.
    """

    def __init__(self, factors: Factors, levels: Levels, log_batches: Floats | None, said: Differences) -> None:
        self._factors = factors
        self._pairs = _pairs_in(levels)
        self._cliffs = [] if log_batches is None else _cliffs_in(levels, log_batches)
        every = np.unique(levels, axis=0)
        self._combinations = every[np.count_nonzero(every[:, :-1], axis=1) >= _OF_SEVERAL]
        self._prior_of_pair = _PAIRS / (_FEW_PAIRS + factors.pairs)
        prior_of_cliff = _CLIFFS / (_FEW_CLIFFS + len(self._cliffs))
        self._prior = np.repeat(
            [self._prior_of_pair, prior_of_cliff, _COMBINATIONS / max(1, len(self._combinations))],
            [len(self._pairs), len(self._cliffs), len(self._combinations)],
        )
        self._told_apart: tuple[Floats, Numbers, Floats] | None = None
        self._measured = said.of(self.features(levels, np.zeros(len(levels)) if log_batches is None else log_batches))

    @property
    def count(self) -> int:
        """Number of candidates."""
        return len(self._prior)

    def features(
        self, levels: Levels, log_batches: Floats, deviation: Floats | None = None, only: Numbers | None = None
    ) -> Floats:
        """How much of each candidate points have: one row each.

        Args:
            levels: Their levels.
            log_batches: Log of their batches.
            deviation: Standard deviations of these, if they are estimates.
            only: Numbers of the candidates; all if ``None``.
        """
        pairs, cliffs = len(self._pairs), len(self._cliffs)
        every = np.arange(len(self._prior)) if only is None else only
        own = self._combinations[every[every >= pairs + cliffs] - pairs - cliffs]
        return np.concatenate(
            [
                _have_pairs(levels, [self._pairs[one] for one in every if one < pairs]),
                _beyond(
                    levels,
                    log_batches,
                    deviation,
                    [self._cliffs[one - pairs] for one in every if pairs <= one < pairs + cliffs],
                ),
                (levels[:, None, :] == own[None, :, :]).all(axis=2).astype(np.float64),
            ],
            axis=1,
        )

    def those(self, measurements: Numbers) -> SparseEffects:
        """The same candidates, as some of the measurements show them."""
        some = copy.copy(self)
        some._measured, some._told_apart = self._measured[measurements], None
        return some

    def and_points(self, levels: Levels, log_batches: Floats) -> SparseEffects:
        """The same candidates, with a further measurement of each of some points."""
        more = copy.copy(self)
        more._told_apart = None
        more._measured = np.concatenate([self._measured, self.features(levels, log_batches)])
        return more

    def covariance(self, variances: Floats) -> Floats:
        """What large effects add to the covariance of the measurements."""
        active = np.flatnonzero(variances)
        has = self._measured[:, active]
        covariance: Floats = (has * variances[active]) @ has.T
        return covariance

    def shared(self, features: Floats, variances: Floats, only: Numbers) -> Floats:
        """What they add to the covariance of points, by their features, with the measurements."""
        shared: Floats = (features * variances[only]) @ self._measured[:, only].T
        return shared

    def find(self, factor: Floats, residuals: Floats, refactor: Callable[[Floats], Floats]) -> Large:
        """Find large effects.

        Args:
            factor: Cholesky factor of the covariance of the measurements without any.
            residuals: Measurements less what is expected of them.
            refactor: Computes that factor with such variances.
        """
        distinct, group, priors = self._distinct
        share = self._prior / np.where(priors > 0, priors, 1.0)[group]
        variances, log_evidence = np.zeros(len(self._prior)), 0.0
        for _ in range(_MOST):
            odds = priors * np.exp(_gains(factor, residuals, distinct).log)
            whole = odds.sum()
            log_evidence += math.log((1 + whole) / (1 + priors.sum()))
            chance = odds / (1 + whole)
            chance[chance < _NEGLIGIBLE] = 0.0
            if whole < max(_LEAST_EVIDENCE, priors.sum()) or not chance.any():
                break
            variances = np.minimum(variances + chance[group] * share * DEVIATION**2, DEVIATION**2)
            factor = refactor(variances)
        return Large(variances, log_evidence)

    @property
    def _distinct(self) -> tuple[Floats, Numbers, Floats]:
        """What measurements show of the candidates that they tell apart, which each candidate is, and their priors."""
        if self._told_apart is None:
            distinct, group = np.unique(self._measured, axis=1, return_inverse=True)
            priors: Floats = np.zeros(distinct.shape[1])
            np.add.at(priors, group.reshape(-1), self._prior)
            priors[~distinct.any(axis=0)] = 0.0
            self._told_apart = distinct, group.reshape(-1), priors
        return self._told_apart

    def suspicions(self, factor: Floats, residuals: Floats, variances: Floats) -> Suspicions:
        """What the measurements say of each pair of settings, whether they show it or not.

        Args:
            factor: Cholesky factor of the covariance of the measurements.
            residuals: Measurements less what is expected of them.
            variances: Those that the covariance has.
        """
        count = sum(self._factors.sizes)
        chance, mean, deviation = (np.zeros((count, count)) for _ in range(3))
        chance[self._factors.different] = self._prior_of_pair
        deviation[:] = DEVIATION
        row = np.full((count, count), -1, dtype=np.intp)
        shown = self._measured[:, : len(self._pairs)]
        known: Floats = cho_solve((factor, True), shown).T
        if not self._pairs:
            return Suspicions(chance, mean, deviation, known, row)
        numbers = self._factors.first_number
        places = tuple(
            np.array([numbers[pair[one][0]] + pair[one][1] - 1 for pair in self._pairs], dtype=np.intp)
            for one in (0, 1)
        )
        gains = _gains(factor, residuals, shown)
        left = 1 - np.minimum(variances[: len(self._pairs)] / DEVIATION**2, 1.0)
        odds = self._prior_of_pair * np.exp(gains.log) * left
        chance[places] = odds / (1 + odds.sum())
        mean[places], deviation[places] = gains.mean, gains.deviation
        row[places] = np.where(shown.any(axis=0), np.arange(len(self._pairs)), -1)
        return Suspicions(chance, mean, deviation, known, row)


class _Gains(NamedTuple):
    """What a large effect of each feature would explain: the log of the Bayes factor, and its posterior."""

    log: Floats
    mean: Floats
    deviation: Floats


def _gains(factor: Floats, residuals: Floats, features: Floats) -> _Gains:
    white = solve_triangular(factor, np.column_stack([features, residuals]), lower=True)
    along, size = white[:, :-1].T @ white[:, -1], np.sum(white[:, :-1] ** 2, axis=0)
    shrunk = DEVIATION**2 / (1 + DEVIATION**2 * size)
    log = 0.5 * along**2 * shrunk - 0.5 * np.log1p(DEVIATION**2 * size)
    return _Gains(np.minimum(log, _LARGEST_LOG), shrunk * along, np.sqrt(shrunk))


def _pairs_in(levels: Levels) -> list[Pair]:
    """Every pair of settings that some point has; the last column, a share of the batch, has none."""
    found: set[Pair] = set()
    for row in np.unique(levels[:, :-1], axis=0):
        used = [(int(column), int(row[column])) for column in np.flatnonzero(row)]
        found.update(itertools.combinations(used, 2))
    return sorted(found)


def _have_pairs(levels: Levels, pairs: list[Pair]) -> Floats:
    if not pairs:
        return np.zeros((len(levels), 0))
    (one, other) = np.moveaxis(np.array(pairs), 1, 0)
    found: Floats = ((levels[:, one[:, 0]] == one[:, 1]) & (levels[:, other[:, 0]] == other[:, 1])).astype(np.float64)
    return found


def _cliffs_in(levels: Levels, log_batches: Floats) -> list[Cliff]:
    """Settings, and batches with measurements of the setting on both sides."""
    found: list[Cliff] = []
    settings = [(_ANY, 0)] + [
        (column, int(level))
        for column in range(levels.shape[1] - 2)
        for level in np.unique(levels[:, column])
        if level > 0
    ]
    for exponent, (column, level) in itertools.product(_EXPONENTS, settings):
        used = np.ones(len(levels), dtype=np.bool_) if column == _ANY else levels[:, column] == level
        beyond = log_batches[used] + _SHARP / 2 >= exponent * math.log(2)
        if beyond.any() and not beyond.all():
            found.append((column, level, exponent))
    return found


def _beyond(levels: Levels, log_batches: Floats, deviation: Floats | None, cliffs: list[Cliff]) -> Floats:
    """Probability that points use a setting at its batch or a larger one."""
    if not cliffs:
        return np.zeros((len(levels), 0))
    column, level, exponent = np.array(cliffs).T
    used = (column == _ANY) | (levels[:, column] == level)
    above = log_batches[:, None] + _SHARP / 2 - exponent * math.log(2)
    likely = above >= 0 if deviation is None else ndtr(above / np.maximum(deviation, _SHARP)[:, None])
    found: Floats = (used * likely).astype(np.float64)
    return found
