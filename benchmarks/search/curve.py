"""Quantities that grow with the batch, interpolated and extrapolated from measured batches."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from benchmarks.search.table_lines import Sized, Timed

__all__ = ["Curve", "PeakCurve"]


class Curve:
    """Linear interpolation between measured batches; beyond them the outermost segment is extended.

    Time and memory never fall as the batch grows, and never shrink faster than the batch: contradicting noise is
    clipped. A single point grows in proportion to the batch.

    Args:
        points: Batch and value; of several with the same batch the last counts.
    """

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        self._points = sorted(dict(points).items())
        assert self._points, "a curve needs a point"

    def at(self, batch: int) -> float:
        """The value at a batch."""
        points = self._points
        first, last = points[0], points[-1]
        if len(points) == 1:
            return first[1] * batch / first[0]
        if batch < first[0]:
            return min(max(_line(first, points[1], batch), first[1] * batch / first[0]), first[1])
        if batch > last[0]:
            return max(_line(points[-2], last, batch), last[1])
        position = max(1, bisect.bisect_left(points, (batch,)))
        return _line(points[position - 1], points[position], batch)


class PeakCurve:
    """Peak memory of one combination: the maximum over its phases, each of which is a curve.

    Args:
        sized: Its profiling runs.
        ran: Its successful timed lines.
    """

    def __init__(self, sized: Sized, ran: Sequence[Timed]) -> None:
        self._phases = [
            Curve(
                [
                    *((point.micro_batch, getattr(point.memory, phase)) for point in sized.points),
                    *((line.batch, getattr(line, phase)) for line in ran),
                ]
            )
            for phase in ("forward_peak_bytes", "backward_peak_bytes", "optimizer_peak_bytes")
        ]

    def at(self, batch: int) -> int:
        """Bytes at a batch."""
        return round(max(phase.at(batch) for phase in self._phases))


def _line(first: tuple[int, float], second: tuple[int, float], batch: int) -> float:
    slope = (second[1] - first[1]) / (second[0] - first[0])
    return first[1] + slope * (batch - first[0])
