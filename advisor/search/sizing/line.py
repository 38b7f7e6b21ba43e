"""A straight line through measured points, with a slope that never falls."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Line"]


class Line(msgspec.Struct, frozen=True):
    """``intercept + slope * x``.

    Memory and time never fall when a batch grows; a measured slope below zero is noise and is taken as flat.
    """

    intercept: float
    slope: float

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> Line:
        """The line through two points ``(x, y)`` with different x; flat at the higher one if it would fall."""
        (x1, y1), (x2, y2) = sorted((first, second))
        assert x1 < x2, f"two different x are needed, got {x1} and {x2}"
        slope = (y2 - y1) / (x2 - x1)
        if slope <= 0:
            return cls(max(y1, y2), 0.0)
        return cls(y2 - slope * x2, slope)

    def at(self, x: float) -> float:
        """The value at ``x``."""
        return self.intercept + self.slope * x

    def reaches(self, y: float) -> float:
        """The largest x whose value is at most ``y``: infinite for a flat line below it, negative if none is."""
        if self.slope == 0:
            return math.inf if self.intercept <= y else -1.0
        return (y - self.intercept) / self.slope
