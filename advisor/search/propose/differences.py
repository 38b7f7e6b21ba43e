"""Measurements of a combination in turn with another: what they say is a difference of two logs.

Two trainings that alternate share the noise, so their ratio is known better than either. As a difference it is a linear
observation of the model's function like any other (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, section 9.4), and the error of the common partner never looks like an effect of the others' settings.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.search.space.factors import Floats, Levels

__all__ = ["Beside", "Differences"]

_Numbers = npt.NDArray[np.intp]


class Beside(msgspec.Struct, frozen=True):
    """The partners of the measurements that were made in turn with one.

    Attributes:
        rows: Numbers of these measurements, ascending.
        levels: The partner of each.
        log_batches: Log of the partner's batch; zeros if unknown.
    """

    rows: _Numbers
    levels: Levels
    log_batches: Floats


class Differences(msgspec.Struct, frozen=True):
    """How measurements follow from the values at points.

    Attributes:
        points: The point of each measurement.
        rows: Measurements that are differences, ascending.
        partners: The point subtracted in each of these.
    """

    points: _Numbers
    rows: _Numbers
    partners: _Numbers

    @classmethod
    def among(cls, levels: Levels, log_batches: Floats, beside: Beside | None) -> tuple[Differences, Levels, Floats]:
        """The measurements of some points, with the levels and log batches of all points, partners included."""
        own, none = np.arange(len(levels)), np.zeros(0, dtype=np.intp)
        if beside is None or not len(beside.rows):
            return cls(own, none, none), levels, log_batches
        keys = np.column_stack([beside.levels, beside.log_batches])
        _, first, number = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return (
            cls(own, beside.rows, len(levels) + number.reshape(-1)),
            np.concatenate([levels, beside.levels[first]]),
            np.concatenate([log_batches, beside.log_batches[first]]),
        )

    @property
    def absolute(self) -> npt.NDArray[np.bool_]:
        """Which measurements are no difference."""
        found = np.ones(len(self.points), dtype=np.bool_)
        found[self.rows] = False
        return found

    def of(self, at_points: Floats) -> Floats:
        """The values of the measurements, from one value or row for each point."""
        found = at_points[self.points]
        found[self.rows] -= at_points[self.partners]
        return found

    def to_points(self, weights: Floats, count: int) -> Floats:
        """The transpose of :meth:`of`: the weight of each of ``count`` points, from one for each measurement."""
        found = np.zeros(count)
        np.add.at(found, self.points, weights)
        np.subtract.at(found, self.partners, weights[self.rows])
        return found

    def and_points(self, before: int, count: int) -> Differences:
        """The same, and a measurement of each of ``count`` points after the first ``before``."""
        return Differences(np.concatenate([self.points, before + np.arange(count)]), self.rows, self.partners)

    def those(self, numbers: _Numbers) -> tuple[Differences, _Numbers]:
        """Some of the measurements, and the points that they need."""
        place = {int(number): row for row, number in enumerate(numbers)}
        kept = [
            (place[int(row)], partner) for row, partner in zip(self.rows, self.partners, strict=True) if row in place
        ]
        rows = np.array([row for row, _ in kept], dtype=np.intp)
        partners = np.array([partner for _, partner in kept], dtype=np.intp)
        points, places = np.unique(np.concatenate([self.points[numbers], partners]), return_inverse=True)
        places = places.reshape(-1)
        return Differences(places[: len(numbers)], rows, places[len(numbers) :]), points
