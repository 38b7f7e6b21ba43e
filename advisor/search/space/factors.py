"""Combinations as numbers: one column of levels for each factor, and the main effects that they have.

A factor is a method (off, or one of its settings), the devices with their mesh, or the share of the largest batch.
What is expected of each before anything was measured is a weak prior: what methods declare about their time is right to
a few tens of percent on a device of the usual kind, and a prior that is sure of itself costs more than none where it
errs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from advisor.hardware.mesh import MeshAxis
from advisor.search.space.space import Combination, ResolvedSpace

__all__ = ["Choice", "Factors", "Floats", "Levels", "Numbers", "differences"]

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int16]
Numbers = npt.NDArray[np.intp]

_METHOD_DEVIATION = 0.15
"""Prior standard deviation of the log of a method's ratio, common to all of its settings."""

_SETTING_DEVIATION = 0.2
"""The same for what one of its settings adds to that: together about a quarter, either way."""

_SCALING_DEVIATION = 0.7
"""Prior standard deviation of the power of the number of devices that a cost follows: how training scales is measured,
not known, but what it does from one to eight tells what it does from one to four."""

_DEVICES_DEVIATION = 0.15
"""The same for how far off that power a number of devices is."""

_CUT_MEAN, _CUT_DEVIATION = 0.1, 0.3
"""Prior mean and standard deviation of the log of the cost of each doubling of an axis that divides the model, instead
of the data: it adds communication or idle time, how much depends on the links and the model."""

_FRACTION_DEVIATION = 0.1
"""The same for a share of the largest batch: a device that half a batch fills gains little from the rest."""


class Choice(NamedTuple):
    """What can be proposed.

    Attributes:
        combination: The methods and the number of devices.
        fraction: Share of the largest feasible micro-batch.
    """

    combination: Combination
    fraction: float


class Factors:
    """The factors of a space.

    Args:
        space: What may be proposed.

    Attributes:
        prior_mean: Expected main effect on the log of the seconds per sample, one for each feature.
        prior_deviation: How far off that may be: a standard deviation each.
        sizes: Number of settings of each factor but the share of the batch; of places, those beyond the first.
        first_number: Number of the first setting of each of these factors, where settings are counted through.
    """

    def __init__(self, space: ResolvedSpace) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._devices = {place: level for level, place in enumerate(space.places)}
        self._fractions = {fraction: level for level, fraction in enumerate(space.batch_fractions)}
        self._features: list[tuple[int, Floats]] = []
        means: list[float] = []
        deviations: list[float] = []
        for column, axis in enumerate(space.axes):
            every_level = tuple(range(1, len(axis.settings) + 1))
            on = np.array([0.0] + [1.0] * len(axis.settings))
            for level, setting in zip(every_level, axis.settings, strict=True):
                self._places[setting.label] = (column, level)
                self._features.append((column, np.eye(len(on))[level]))
                means.append(math.log(space.time_ratios.get(setting.label, 1.0)))
                deviations.append(_SETTING_DEVIATION)
            if len(every_level) > 1:
                # What is learned of one setting says something of the others.
                self._features.append((column, on))
                means.append(0.0)
                deviations.append(_METHOD_DEVIATION)
            else:
                deviations[-1] = math.hypot(_SETTING_DEVIATION, _METHOD_DEVIATION)
        self._columns = len(space.axes) + 2
        self.sizes = (*(len(axis.settings) for axis in space.axes), len(self._devices) - 1)
        self.first_number = (0, *itertools.accumulate(self.sizes))[:-1]
        self._names = {place: label for label, place in self._places.items()}
        self._names |= {
            (self._columns - 2, level): mesh.on_devices(count).removeprefix(" on ") or "1 device"
            for (count, mesh), level in self._devices.items()
        }
        for column, levels, deviation in (
            (self._columns - 2, len(self._devices), _DEVICES_DEVIATION),
            (self._columns - 1, len(self._fractions), _FRACTION_DEVIATION),
        ):
            for level in range(1, levels):
                self._features.append((column, np.eye(levels)[level]))
                means.append(0.0)
                deviations.append(deviation)
        for logs, mean, deviation in _scales(space):
            self._features.append((self._columns - 2, logs))
            means.append(mean)
            deviations.append(deviation)
        self.prior_mean: Floats = np.array(means, dtype=np.float64)
        self.prior_deviation: Floats = np.array(deviations, dtype=np.float64)

    def name(self, column: int, level: int) -> str:
        """What a level above 0 of a method or of the number of devices is called."""
        return self._names[column, level]

    def levels(self, points: Iterable[Choice]) -> Levels:
        """The level of every factor, 0 for off: one row for each point, one column for each factor."""
        rows = []
        for combination, fraction in points:
            row = [0] * self._columns
            for setting in combination.settings:
                column, level = self._places[setting.label]
                row[column] = level
            row[-2] = self._devices[combination.gpu_count, combination.mesh]
            row[-1] = self._fractions[fraction]
            rows.append(row)
        return np.array(rows, dtype=np.int16).reshape(len(rows), self._columns)

    @functools.cached_property
    def different(self) -> npt.NDArray[np.bool_]:
        """For each two settings, the lower number first, whether they are of different factors: all pairs there are."""
        factor = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return np.triu(factor[:, None] != factor[None, :])

    @property
    def has_one_fraction(self) -> bool:
        """Whether every point has the largest batch of its combination."""
        return len(self._fractions) == 1

    @property
    def pairs(self) -> int:
        """Number of pairs of settings of different factors."""
        return int(np.count_nonzero(self.different))

    def pairs_of(self, levels: Levels) -> tuple[Numbers, Numbers, Numbers]:
        """Every pair of settings in some points: the row of each, and the numbers of its two settings."""
        numbers = np.where(levels[:, :-1] > 0, np.array(self.first_number) + levels[:, :-1] - 1, -1)
        found = [
            (rows, numbers[rows, one], numbers[rows, other])
            for one, other in itertools.combinations(range(numbers.shape[1]), 2)
            if len(rows := np.flatnonzero((numbers[:, one] >= 0) & (numbers[:, other] >= 0)))
        ]
        if not found:
            none = np.zeros(0, dtype=np.intp)
            return none, none, none
        rows, first, second = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows, first, second

    def effects(self, levels: Levels) -> Floats:
        """How much of each main effect each row has: one column for each entry of :attr:`prior_mean`."""
        design = np.empty((len(levels), len(self._features)))
        for number, (column, values) in enumerate(self._features):
            design[:, number] = values[levels[:, column]]
        return design


def _scales(space: ResolvedSpace) -> Iterator[tuple[Floats, float, float]]:
    """What grows with the devices: a value for each place, and the prior mean and deviation of its effect."""
    counts = np.array([count for count, _ in space.places], dtype=np.float64)
    if len(space.gpu_counts) > 1:
        yield np.log(counts / counts[0]), 0.0, _SCALING_DEVIATION
    for axis in (MeshAxis.TENSOR, MeshAxis.PIPELINE):
        doublings = np.log2([mesh.degree(axis, count) for count, mesh in space.places])
        if np.ptp(doublings) > 0:
            yield doublings, _CUT_MEAN, _CUT_DEVIATION


def differences(some: Levels, others: Levels) -> Floats:
    """In how many factors each of ``some`` differs from each of ``others`` (the Hamming distance)."""
    count = np.zeros((len(some), len(others)))
    for column in range(some.shape[1]):
        count += some[:, column, None] != others[None, :, column]
    return count
