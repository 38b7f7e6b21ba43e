"""Guesses at the scales of effects, and what the measurements say under each of them (:mod:`cost_model`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.search.space.factors import Floats, Levels, Numbers

__all__ = [
    "LargeOf",
    "Points",
    "Posterior",
    "Scales",
    "Suspected",
    "guesses",
    "likeliest_halves",
    "weights_of",
    "without_unlikely",
]

_EFFECT_SCALES = (0.6, 1.0, 1.7)
"""Factors on the prior standard deviations of the main effects."""

_INTERACTION_DEVIATIONS = (0.02, 0.05, 0.1, 0.2)
"""Standard deviations of the interactions within a neighbourhood."""

_USUAL_INTERACTION = 0.05
"""The likeliest value a priori."""

_UNLIKELY = 0.02
"""Less likely guesses are dropped."""

_HALVES_WITH_LARGE = 2
"""Number of guesses at the fixed time for which large effects are looked for: the likeliest."""

_DOUBT_OF_SCALE = math.log(2.5)
"""Prior spread of the scales around the middle one, as a factor."""


class Scales(msgspec.Struct, frozen=True):
    """One guess at the scales of effects.

    Attributes:
        effects: Factor on the prior standard deviations of the main effects.
        interactions: Standard deviation of the interactions, in the log of the cost.
        half: Micro-batch at which half of a step without any method is fixed time.
    """

    effects: float
    interactions: float
    half: float

    @classmethod
    def usual(cls, half: float) -> Scales:
        """The likeliest scales a priori, for a batch at which half of a step may be fixed time."""
        return cls(effects=1.0, interactions=_USUAL_INTERACTION, half=half)

    @property
    def log_prior(self) -> float:
        """Log prior of the guess, up to a constant."""
        off = (math.log(self.effects), math.log(self.interactions / _USUAL_INTERACTION))
        return -0.5 * sum((one / _DOUBT_OF_SCALE) ** 2 for one in off)

    def overhead(self, points: Points) -> Floats:
        """Share of a step that is fixed time, for each combination at its batch."""
        half = self.half * np.exp(points.shift)
        share: Floats = half / (half + np.exp(points.log_batches))
        return share

    def own_time(self, points: Points) -> Floats:
        """What a step's fixed time adds to the log of the cost without effects on it.

        This is the tangent at the estimated effects, linear in their error.
        """
        share = self.overhead(points)
        added: Floats = -np.log1p(-share) - share * points.shift
        return added


class Points(msgspec.Struct, frozen=True):
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

    def those(self, numbers: Numbers) -> Points:
        """Select rows."""
        return Points(self.levels[numbers], self.design[numbers], self.log_batches[numbers], self.shift[numbers])


class Posterior(msgspec.Struct, frozen=True, kw_only=True):
    """The posterior under one guess.

    Attributes:
        log_weight: Log likelihood of the guess, up to a constant.
        factor: Cholesky factor of the covariance of the measurements.
        residuals: The measurements less what is expected of them.
        weights: Inverse covariance times the residuals.
        large: Variances of large effects.
    """

    scales: Scales
    log_weight: float
    level: float
    factor: Floats
    residuals: Floats
    weights: Floats
    large: Floats


class LargeOf(NamedTuple):
    """The large effects of some points: numbers of those with a variance, and how much of each the points have."""

    only: Numbers
    values: Floats


class Suspected(NamedTuple):
    """Pairs of settings in some points that may have a large interaction, one entry for each pair of each point.

    Attributes:
        rows: The point.
        one: Number of one of its settings (:class:`Factors`).
        other: Number of another.
        chance: Probability of the interaction.
        mean: What it adds to the log of the cost, if there is one.
        deviation: Standard deviation of that.
    """

    rows: Numbers
    one: Numbers
    other: Numbers
    chance: Floats
    mean: Floats
    deviation: Floats


def guesses(halves: Sequence[float]) -> Iterator[Scales]:
    """Every guess.

    Args:
        halves: Batches at which half of a step may be fixed time.
    """
    return itertools.starmap(Scales, itertools.product(_EFFECT_SCALES, _INTERACTION_DEVIATIONS, halves))


def weights_of(posteriors: Sequence[Posterior]) -> Floats:
    """The likelihood of each guess, up to a common factor."""
    log_weights = np.array([posterior.log_weight for posterior in posteriors])
    weights: Floats = np.exp(log_weights - log_weights.max())
    return weights


def without_unlikely(posteriors: list[Posterior]) -> list[Posterior]:
    """Those that are at least a fiftieth as likely as the likeliest."""
    likeliest = max(posterior.log_weight for posterior in posteriors)
    return [one for one in posteriors if one.log_weight > likeliest + math.log(_UNLIKELY)]


def likeliest_halves(posteriors: list[Posterior]) -> list[float]:
    """The likeliest guesses at the batch at which half of a step is fixed time: to find large effects with."""
    best: dict[float, float] = {}
    for one in posteriors:
        best[one.scales.half] = max(one.log_weight, best.get(one.scales.half, -math.inf))
    return sorted(best, key=lambda half: -best[half])[:_HALVES_WITH_LARGE]
