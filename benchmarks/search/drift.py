"""How the speed of a shared machine varied while a table was recorded."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence

from benchmarks.search.table_lines import Timed

__all__ = ["Drift"]

_MAD_TO_DEVIATION = 1.4826
"""Ratio of a normal distribution's standard deviation to its median absolute deviation."""


class Drift:
    """The repetitions of plain training, from which the drift is interpolated.

    Args:
        references: At least one that was measured, from one or several runs.
    """

    def __init__(self, references: Sequence[Timed]) -> None:
        measured = [line for line in references if line.step_seconds is not None]
        assert measured, "a table begins with plain training"
        self._middle = statistics.median(line.step_seconds for line in measured if line.step_seconds is not None)
        self._runs: dict[int, list[tuple[float, float]]] = {}
        for line in sorted(measured, key=lambda line: line.moment):
            assert line.step_seconds is not None
            self._runs.setdefault(line.run, []).append((line.moment, line.step_seconds))
        self._spread = statistics.median(line.spread or 0.0 for line in measured)

    @property
    def middle_seconds(self) -> float:
        """Step time of plain training at the reference batch, the median over the table."""
        return self._middle

    def factor(self, run: int, moment: float) -> float:
        """Slowdown of the machine at a moment, relative to the median over the table.

        Between two repetitions of plain training the logarithm of its time is interpolated; outside of them the nearest
        one is used.
        """
        points = self._runs[run]
        position = bisect.bisect(points, (moment, math.inf))
        if position == 0 or position == len(points):
            seconds = points[min(position, len(points) - 1)][1]
        else:
            seconds = _between(points[position - 1], points[position], moment)
        return seconds / self._middle

    @property
    def noise(self) -> float:
        """Relative standard deviation of one measurement after the drift is divided out.

        Every repetition is compared with the interpolation of its two neighbours. The difference has one and a half
        times the variance of one measurement (plus the nonlinear part of the drift). With fewer than three repetitions:
        from the confidence interval of single measurements.
        """
        residuals = [
            math.log(middle[1] / _between(before, after, middle[0]))
            for points in self._runs.values()
            for before, middle, after in zip(points, points[1:], points[2:], strict=False)
        ]
        if not residuals:
            return self._spread / 1.96
        return _MAD_TO_DEVIATION * statistics.median(abs(residual) for residual in residuals) / math.sqrt(1.5)


def _between(before: tuple[float, float], after: tuple[float, float], moment: float) -> float:
    length = after[0] - before[0]
    share = (moment - before[0]) / length if length > 0 else 0.5
    return math.exp((1 - share) * math.log(before[1]) + share * math.log(after[1]))
