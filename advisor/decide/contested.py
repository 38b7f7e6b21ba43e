"""Two that lead by figures so near that the worse of two may name the wrong one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from advisor.measure.timing import NEAR

__all__ = ["contested"]

_Key = TypeVar("_Key")
_TWICE = 2


def contested(figures: Mapping[_Key, Sequence[float]]) -> list[_Key]:
    """Who is to be measured a third time, so that the median decides.

    Of two figures the worse one stands, since leaders are found by their luck. It punishes the best where its luck was
    bad: once those near the lead have two figures each, their means say better who may be the best.

    Args:
        figures: What was measured of each, every figure positive, more of it being better.

    Returns:
        Of the two best by the mean of two figures or more, if these are near each other, those that have two; the best
        first.
    """
    means = {key: statistics.fmean(some) for key, some in figures.items() if len(some) >= _TWICE}
    best = sorted(means, key=lambda key: -means[key])[:2]
    if len(best) < 2 or means[best[0]] > (1 + NEAR) * means[best[1]]:
        return []
    return [key for key in best if len(figures[key]) == _TWICE]
