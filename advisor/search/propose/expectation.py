"""Predict untried combinations: how much better they are, and how likely they are to work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
from scipy.special import ndtr

from advisor.search.propose.batch_model import BatchModel, Estimate, Spreads
from advisor.search.propose.cost_model import Batches, CostModel
from advisor.search.propose.differences import Beside
from advisor.search.propose.failures import Failures
from advisor.search.propose.posterior import Suspected
from advisor.search.propose.room_model import MemoryShares, RoomModel
from advisor.search.space.factors import Choice, Factors, Floats, Levels

__all__ = ["Expectation", "Expectations", "Observation", "improvement"]

_Item = TypeVar("_Item")

_MEMORY_NOISE = 0.02
"""Standard deviation of a peak relative to its limit."""

_AT_LEAST = 1.2
"""Share of the limit that a combination is taken to need if not even one sample fits, unless it is known to need
less."""

_PEAKS = Spreads(effects=1.0, interactions=0.05, noise=_MEMORY_NOISE)

_DOUBT = 3.0
"""Factor on deviations where the model is not trusted."""

_MOST_MEASURED = 256
"""Most measurements to fit the model to: its cost grows with their cube, its accuracy hardly at all."""

_BEST_MEASURED = 16
"""The best measurements are always among them, because still better points resemble them. Few, as some are just lucky.
"""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The result at one point.

    Attributes:
        logs: Log of every objective, less being better; ``None`` if nothing was measured.
        noise: Standard deviation of the logs between repetitions.
        failed: Whether it failed for a reason other than lack of memory.
        unfaithful: Whether it failed only because its losses are not those of plain training.
        memory: Log of its peak over the limit, if known: above zero it did not fit.
        under_way: Whether its outcome is pending.
        tried: Whether the measurement is a trial of the point: others inform the model, but cannot be the answer.
        batch: Micro-batch of the measurement, if known.
        largest_batch: The largest micro-batch of its combination, if different.
        shares: What its combination takes of the memory, if known.
        beside: For a measurement in turn with another combination: that one. The logs are those of the ratio.
        beside_batch: Micro-batch of the other, if known.
    """

    choice: Choice
    logs: tuple[float, ...] | None = None
    noise: float = 0.02
    failed: bool = False
    unfaithful: bool = False
    memory: float | None = None
    under_way: bool = False
    tried: bool = True
    batch: int | None = None
    largest_batch: int | None = None
    shares: MemoryShares | None = None
    beside: Choice | None = None
    beside_batch: int | None = None

    @property
    def ran(self) -> bool:
        """Whether it succeeded, apart from memory."""
        return self.logs is not None and not self.failed

    @property
    def counts(self) -> bool:
        """Whether the point could be the answer."""
        return self.tried and self.ran and (self.memory is None or self.memory <= 0)


class Expectation(msgspec.Struct, frozen=True):
    """Predictions for some points, one entry each.

    Attributes:
        mean: Expected log of the cost.
        success: Probability that the point can be measured and may win.
        improvement: Expected relative decrease of the cost below the least so far, failures included; before the first
            measurement, the probability of success.
        if_wrong: The same if the model were much less certain.
    """

    mean: Floats
    success: Floats
    improvement: Floats
    if_wrong: Floats

    def joined(self, others: Expectation) -> Expectation:
        """Concatenate these and others."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(others), strict=True)
        return Expectation(*map(np.concatenate, pairs))


class Expectations:
    """Predictions after some observations.

    Pending points count as if they had turned out as expected (Ginsbourger, Le Riche and Carraro, Kriging is
    well-suited to parallelize optimization, 2010, section 3.2), so that no other worker tries their neighbours.

    Args:
        factors: The factors of the space.
        observations: The results so far.
        weights: Weight of the log of each objective.
    """

    def __init__(self, factors: Factors, observations: Sequence[Observation], weights: Sequence[float]) -> None:
        self._factors = factors
        self.failures = Failures(
            factors,
            factors.levels(one.choice for one in observations if one.failed),
            factors.levels(one.choice for one in observations if one.ran),
        )
        self._room = self._room_model(observations)
        self._peaks = None if self._room is not None else self._peak_model(observations)
        measured = _telling([one for one in observations if one.logs is not None], weights)
        self._model: CostModel | None = None
        self._least = math.inf
        if all(one.beside is not None for one in measured):
            return
        levels = factors.levels(one.choice for one in measured)
        logs = np.array([_weighted(one.logs, weights) for one in measured])
        noise = np.array([one.noise for one in measured])
        decides = self._room is not None and self._room.decides and factors.has_one_fraction
        room = self._room if decides else None
        self._model = CostModel(factors, levels, logs, noise, _batches(measured), _beside(factors, measured), room)
        # The least of many noisy measurements is a lucky one, so compare with the model's estimate of its combination.
        may_win = np.array([one.counts for one in measured])
        if may_win.any():
            self._least = float(self._model.estimate(levels[may_win]).mean.min())
        waiting = factors.levels(one.choice for one in observations if one.under_way)
        if len(waiting):
            self._model = self._model.believing(waiting, float(np.median(noise)))

    def of(self, levels: Levels) -> Expectation:
        """Predict points, one row of levels each."""
        success = self.success(levels)
        if self._model is None:
            declared: Floats = self._factors.effects(levels) @ self._factors.prior_mean
            return Expectation(declared, success, success, success)
        estimate = self._model.estimate(levels)
        if not math.isfinite(self._least):
            return Expectation(estimate.mean, success, success, success)
        lead = self._least - estimate.mean
        expected, if_wrong = (improvement(lead, doubt * estimate.deviation) for doubt in (1.0, _DOUBT))
        expected = self._with_pairs(levels, lead, estimate.deviation, expected)
        return Expectation(estimate.mean, success, expected * success, if_wrong * success)

    @property
    def least(self) -> float:
        """The estimated cost of the best that could be the answer; infinite if nothing could."""
        return self._least

    def suspected(self, levels: Levels) -> Suspected:
        """What large interactions of pairs of settings, which the model does not have, may do to some points."""
        assert self._model is not None, "something was measured"
        return self._model.suspected(levels)

    def success(self, levels: Levels) -> Floats:
        """Probability that points can be measured, one row of levels each."""
        success = 1 - self.failures.probability(levels)
        if self._room is not None:
            success = success * self._room.room(levels).fits
        if self._peaks is not None:
            peak = self._peaks.estimate(levels)
            success = success * ndtr(-peak.mean / np.hypot(peak.deviation, _MEMORY_NOISE))
        return success

    def _with_pairs(self, levels: Levels, lead: Floats, deviation: Floats, expected: Floats) -> Floats:
        """The expected improvement, with what a large interaction that the model does not have might bring."""
        found = self.suspected(levels)
        with_it = improvement(lead[found.rows] - found.mean, np.hypot(deviation[found.rows], found.deviation))
        more = np.zeros(len(levels))
        np.add.at(more, found.rows, found.chance * (with_it - expected[found.rows]))
        return np.maximum(expected + more, 0.0)

    def standing(self, levels: Levels) -> Estimate:
        """The model's estimate of measured points, from their own measurements and all others.

        The best of many noisy measurements was lucky. Others with its settings show by how much.
        """
        assert self._model is not None, "something was measured"
        return self._model.estimate(levels)

    def joint(self, levels: Levels, batches: Sequence[int]) -> tuple[Floats, Floats]:
        """Estimate points at given micro-batches together: the mean of each log, and the covariance of all."""
        assert self._model is not None, "something was measured"
        return self._model.joint(levels, np.log(np.array(batches, dtype=np.float64)))

    def _room_model(self, observations: Sequence[Observation]) -> RoomModel | None:
        """A model of the room in memory, from the latest that is known of each combination."""
        latest = {
            one.choice.combination.label: (one.choice, shares)
            for one in observations
            if (shares := one.shares or _too_large(one)) is not None
        }
        if all(one.shares is None for one in observations):
            return None
        known = _spaced(list(latest.values()), _MOST_MEASURED)
        ran = {
            one.choice.combination.label: (one.choice, one.largest_batch)
            for one in observations
            if one.ran and one.beside is None and one.largest_batch is not None
        }
        return RoomModel(
            self._factors,
            self._factors.levels(choice for choice, _ in known),
            [shares for _, shares in known],
            self._factors.levels(choice for choice, _ in ran.values()),
            np.log(np.array([batch for _, batch in ran.values()], dtype=np.float64)),
        )

    def _peak_model(self, observations: Sequence[Observation]) -> BatchModel | None:
        """A model of peaks, once something did not fit, where no more is known of memory."""
        known = _spaced([one for one in observations if one.memory is not None], _MOST_MEASURED)
        peaks = np.array([one.memory for one in known], dtype=np.float64)
        if not (peaks > 0).any():
            return None
        levels = self._factors.levels(one.choice for one in known)
        return BatchModel(self._factors, levels, peaks, _PEAKS)


def _too_large(one: Observation) -> MemoryShares | None:
    """What a combination takes of which not even a sample fits, where no more is known: a half of it for the sample."""
    if one.logs is not None or one.memory is None or one.memory <= 0:
        return None
    need = min(math.exp(one.memory), _AT_LEAST)
    return MemoryShares(need / 2, need / 2)


def improvement(lead: Floats, deviation: Floats) -> Floats:
    """The mean of the positive part of a normal variable."""
    steps = lead / deviation
    density = np.exp(-0.5 * steps**2) / math.sqrt(2 * math.pi)
    gained: Floats = np.maximum(lead * ndtr(steps) + deviation * density, 0.0)
    return gained


def _telling(measured: list[Observation], weights: Sequence[float]) -> list[Observation]:
    """Select enough observations for a quick fit: the best, and some of the others from all stages of the search.

    This is the subset-of-data approximation (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
    section 8.3.3). Most of the others are chosen regardless of their measurements, because dropping the worst would
    bias the model.
    """
    if len(measured) <= _MOST_MEASURED:
        return measured
    absolute = [number for number, one in enumerate(measured) if one.beside is None]
    order = sorted(absolute, key=lambda one: _weighted(measured[one].logs, weights))
    best = set(order[:_BEST_MEASURED])
    others = _spaced([one for one in range(len(measured)) if one not in best], _MOST_MEASURED - _BEST_MEASURED)
    return [measured[one] for one in sorted((*best, *others))]


def _spaced(items: list[_Item], most: int) -> list[_Item]:
    """At most ``most`` items, evenly spaced."""
    if len(items) <= most:
        return items
    return [items[number * len(items) // most] for number in range(most)]


def _batches(measured: Sequence[Observation]) -> Batches | None:
    """The batches of the measurements; ``None`` if one is unknown."""
    if any(one.batch is None or (one.beside is not None and one.beside_batch is None) for one in measured):
        return None
    logs = [math.log(one.batch or 1) for one in measured]
    largest = [math.log(one.largest_batch or one.batch or 1) for one in measured]
    return Batches(np.array(logs), np.array(largest))


def _beside(factors: Factors, measured: Sequence[Observation]) -> Beside | None:
    """What the measurements were made in turn with, as far as they were."""
    others = [(number, one) for number, one in enumerate(measured) if one.beside is not None]
    if not others:
        return None
    known = _batches(measured) is not None
    return Beside(
        rows=np.array([number for number, _ in others], dtype=np.intp),
        levels=factors.levels(one.beside for _, one in others if one.beside is not None),
        log_batches=np.array([math.log(one.beside_batch or 1) if known else 0.0 for _, one in others]),
    )


def _weighted(logs: Sequence[float] | None, weights: Sequence[float]) -> float:
    assert logs is not None, "only what was measured has a cost"
    return float(np.dot(logs, weights))
