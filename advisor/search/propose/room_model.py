"""How many samples memory has room for, learned from the combinations of which it is known.

A method acts on memory in two ways: on what a step needs whatever the batch, and on what each sample adds to it. Either
is nearly a product of what the methods do, but the batch that both leave room for is not: where weights and optimizer
states fill most of the memory, a saving of a tenth doubles the batch, and where it holds two samples, a sample costs or
brings a half. So both are learned, each as a sum of main effects on its log (:class:`BatchModel`), and the batch
follows from them, with the chance that not even one sample fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.search.propose.batch_model import BatchModel, Estimate, Spreads
from advisor.search.sizing.memory_model import DEFAULT_MARGIN, FEW, LARGEST_BATCH
from advisor.search.space.factors import Factors, Floats, Levels

__all__ = ["MemoryShares", "Room", "RoomModel"]

_FIXED = Spreads(effects=0.6, interactions=0.03, noise=0.03)
_PER_SAMPLE = Spreads(effects=1.2, interactions=0.05, noise=0.03)

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_PAIRS_OF_WEIGHTS = np.outer(_WEIGHTS, _WEIGHTS).ravel() / _WEIGHTS.sum() ** 2

_WHOLE = 16
"""Batches from here on are rounded to even numbers or more, by 3 % on average."""

_ROUNDED = 0.97

_KNOWN = 0.03
"""Uncertainty of the log of a batch that was measured: another trial may round it differently."""

_LEAST_DEVIATION = 1e-3

_DECIDES = 0.8
"""Share of the room below which a batch was limited by something else, such as the time of a step."""


class MemoryShares(NamedTuple):
    """What a combination takes at its largest batch, as shares of the memory limit.

    Attributes:
        fixed: What does not depend on the batch.
        per_sample: What each sample adds.
    """

    fixed: float
    per_sample: float


class Room(NamedTuple):
    """What memory has room for, one entry for each combination.

    Attributes:
        batch: The log of the largest batch, if a sample fits.
        fits: Probability that one does.
    """

    batch: Estimate
    fits: Floats


class RoomModel:
    """The posterior after some combinations.

    Args:
        factors: The factors of the space.
        levels: The combinations, one row each; at least one.
        shares: What each takes.
        measured: Combinations that ran.
        largest: The log of the largest batch of each of these.
    """

    def __init__(
        self, factors: Factors, levels: Levels, shares: list[MemoryShares], measured: Levels, largest: Floats
    ) -> None:
        fixed, per_sample = np.array(shares, dtype=np.float64).T
        self._fixed = BatchModel(factors, levels, np.log(fixed), _FIXED)
        self._per_sample = BatchModel(factors, levels, np.log(per_sample), _PER_SAMPLE)
        self._largest = {row.tobytes(): log for row, log in zip(measured, largest, strict=True)}
        samples = {row.tobytes(): one for row, one in zip(levels, _samples(fixed, per_sample), strict=True) if one >= 1}
        filled = [np.exp(log) / samples[row] for row, log in self._largest.items() if row in samples]
        self.decides = bool(filled) and float(np.median(filled)) >= _DECIDES
        """Whether memory, and nothing else, limits most of the batches that were measured."""

    def estimate(self, levels: Levels) -> Estimate:
        """What is expected of the log of the largest batch of combinations, one row each, if a sample fits."""
        return self.room(levels).batch

    def room(self, levels: Levels) -> Room:
        """What is expected of combinations, one row each."""
        fixed, per_sample = (
            np.exp(one.mean[:, None] + one.deviation[:, None] * _NODES)
            for one in (self._fixed.estimate(levels), self._per_sample.estimate(levels))
        )
        samples = _samples(fixed[:, :, None], per_sample[:, None, :]).reshape(len(levels), len(_PAIRS_OF_WEIGHTS))
        weights = np.where(samples >= 1, _PAIRS_OF_WEIGHTS, 0.0)
        fits = weights.sum(axis=1)
        logs = np.log(np.maximum(samples, 1.0))
        whole = np.maximum(fits, np.finfo(np.float64).tiny)
        mean = np.sum(weights * logs, axis=1) / whole
        deviation = np.sqrt(np.maximum(np.sum(weights * logs**2, axis=1) / whole - mean**2, _LEAST_DEVIATION**2))
        for number, row in enumerate(levels):
            known = self._largest.get(row.tobytes())
            if known is not None:
                mean[number], deviation[number], fits[number] = known, _KNOWN, 1.0
        return Room(Estimate(mean, deviation), fits)


def _samples(fixed: Floats, per_sample: Floats) -> Floats:
    """The largest batch, as :class:`~advisor.search.sizing.memory_model.MemoryModel` chooses it; below 1 if none."""
    usable, whole = ((limit - fixed) / per_sample for limit in (1 - DEFAULT_MARGIN, 1.0))
    few = np.minimum(np.floor(usable) + 1, np.floor(whole))
    exact = np.where(usable < _WHOLE, np.floor(usable), _ROUNDED * usable)
    samples: Floats = np.minimum(np.where(np.floor(usable) < FEW, few, exact), LARGEST_BATCH)
    return samples
