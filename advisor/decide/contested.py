"""Find two leaders so close that the worse of two measurements each may name the wrong one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from advisor.measure.timing import NEAR

__all__ = ["contested"]

_Key = TypeVar("_Key")
_TWICE = 2


def contested(measurements: Mapping[_Key, Sequence[float]]) -> list[_Key]:
    """Choose the policies to measure a third time, so that the median decides.

    The worse of two measurements counts, since leaders tend to be lucky. That punishes the best if it was unlucky: once
    those near the lead have two measurements each, their means show better which may be the best.

    Args:
        measurements: The positive measurements of each, larger being better.

    Returns:
        Of the two best by the mean of two or more measurements, if they are close, those that have two; the best first.
    """
    means = {key: statistics.fmean(some) for key, some in measurements.items() if len(some) >= _TWICE}
    best = sorted(means, key=lambda key: -means[key])[:2]
    if len(best) < 2 or means[best[0]] > (1 + NEAR) * means[best[1]]:
        return []
    return [key for key in best if len(measurements[key]) == _TWICE]
