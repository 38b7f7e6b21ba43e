"""Estimate a step's time in the long run from a sample of step times.

A single disturbed step does not reflect a training's speed, so the median is usually best. But if other programs keep
busy the cores that threads wait for, some steps always take ten times as long as others: then the mean is the
training's speed, and the median is luck.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["median_interval", "student_t_95", "typical_interval", "typical_seconds"]

_STALLS = 1.5
"""Ratio of mean to median from which stalls count as part of the training's speed: they take a third of its time."""

_STUDENT_T_95 = dict(enumerate((12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228), start=1))
_NORMAL_95 = 1.96

_FEWEST_FOR_ORDER = 8


def typical_seconds(steps: Sequence[float]) -> float:
    """The median of one step or more; the mean where stalls take a third of the time or more."""
    return statistics.fmean(steps) if _stalls(steps) else statistics.median(steps)


def typical_interval(steps: Sequence[float]) -> tuple[float, float]:
    """A 95 % confidence interval of :func:`typical_seconds`: that of the median, or Student's of the mean.

    One step alone says nothing: (0, infinity).
    """
    if not _stalls(steps):
        return median_interval(steps)
    mean = statistics.fmean(steps)
    # Of the log: the mean of what has a long tail is never known to be near zero.
    half = student_t_95(len(steps) - 1) * statistics.stdev(steps) / math.sqrt(len(steps)) / mean
    return mean * math.exp(-half), mean * math.exp(half)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % confidence interval of the median.

    From eight values on by order statistics: the k-th smallest and the k-th largest value, where k is as large as
    the binomial distribution allows; it holds for any distribution and a few slow steps do not widen it. For fewer
    values no order statistics reach 95 %, or only the two extremes do: there Student's interval around the median,
    which an outlier widens, so that it errs towards "not sure yet". One value says nothing: (0, infinity).

    Source: Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2.
    """
    count = len(values)
    middle = statistics.median(values)
    if count == 1:
        return 0.0, math.inf
    if count < _FEWEST_FOR_ORDER:
        half = student_t_95(count - 1) * statistics.stdev(values) / math.sqrt(count)
        return max(0.0, middle - half), middle + half
    ordered = sorted(values)
    rank = _order_rank(count)
    return ordered[rank - 1], ordered[count - rank]


def student_t_95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t distribution with so many degrees of freedom."""
    return _STUDENT_T_95.get(freedom, _NORMAL_95 * (1 + 1.2 / freedom))


def _stalls(steps: Sequence[float]) -> bool:
    return len(steps) > 1 and statistics.fmean(steps) > _STALLS * statistics.median(steps)


def _order_rank(count: int) -> int:
    """The largest k with P(fewer than k of ``count`` fair coins show heads) <= 2.5 %."""
    # In whole numbers, one from the next: hundreds of steps are looked at between steps of less than a millisecond.
    ways = tail = 1
    rank = 0
    while 40 * tail <= 2**count:
        ways = ways * (count - rank) // (rank + 1)
        tail += ways
        rank += 1
    return rank
