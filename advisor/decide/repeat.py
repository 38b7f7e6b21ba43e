"""Choose which leader to measure once more before one is recommended.

The best of many noisy measurements was lucky. The search's model weighs each against all others and is rarely fooled.
So a measurement that leads against the model's estimate is repeated, and so is any combination that may still turn out
to be relevantly better: the expected value of information (Frazier, Powell and Dayanik, A knowledge-gradient policy for
sequential information collection, 2008, section 3), with a bound instead of a price. If the best measurement belongs to
the combination with the best estimate, and choosing it is expected to lose less than half a percent, nothing is
repeated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from advisor.measure.timing import NEAR
from advisor.search.propose.standing import Standing

__all__ = ["MOST_REPEATED", "contested", "expected_loss", "typical_value", "worth_repeating"]

MOST_REPEATED = 8
"""Most repetitions in all: differences not resolved by then hardly matter."""

_ENOUGH = 0.005
"""Share of the best throughput that a choice may be expected to lose without another measurement."""

_OFTEN = 3
"""Most measurements of one combination: the median of three counts."""

_STANDARD = statistics.NormalDist()

_Key = TypeVar("_Key")


def typical_value(measurements: Sequence[float]) -> float:
    """The value that represents several, larger being better: the median, or the worse of two."""
    return sorted(measurements)[(len(measurements) - 1) // 2]


def worth_repeating(standings: Mapping[str, Standing], measurements: Mapping[str, Sequence[float]]) -> str | None:
    """The combination to measure once more; ``None`` if no gain is expected from it.

    Args:
        standings: The model's estimate of everything that may win, including the repetitions so far.
        measurements: Of each, larger being better.
    """
    open_ones = {one: standing for one, standing in standings.items() if len(measurements[one]) < _OFTEN}
    leader = min(standings, key=lambda one: standings[one].mean, default=None)
    if leader is None or len(standings) == 1:
        return None
    lucky = max(measurements, key=lambda one: typical_value(measurements[one]))
    if lucky != leader and lucky in open_ones:
        return lucky
    losses = {one: _loss(standings[leader], standing) for one, standing in standings.items() if one != leader}
    rival = max(losses, key=lambda one: losses[one])
    known_less = [one for one in (rival, leader) if one in open_ones]
    if losses[rival] < _ENOUGH or not known_less:
        return None
    return max(known_less, key=lambda one: standings[one].deviation)


def contested(measurements: Mapping[_Key, Sequence[float]]) -> list[_Key]:
    """Choose the policies to measure a third time, so that the median decides.

    The worse of two measurements counts, since leaders tend to be lucky. That punishes the best if it was unlucky: once
    those near the lead have two measurements each, their means show better which may be the best.

    Returns:
        Of the two best by the mean of two or more measurements, if they are close, those that have two; the best first.
    """
    means = {key: statistics.fmean(some) for key, some in measurements.items() if len(some) >= 2}
    best = sorted(means, key=lambda key: -means[key])[:2]
    if len(best) < 2 or means[best[0]] > (1 + NEAR) * means[best[1]]:
        return []
    return [key for key in best if len(measurements[key]) == 2]


def expected_loss(behind: float, deviation: float) -> float:
    """Expected relative loss from choosing one combination if another is better.

    Args:
        behind: Expected log of the chosen one's cost over the other's.
        deviation: Standard deviation of that log.
    """
    steps = behind / deviation
    return behind * _STANDARD.cdf(steps) + deviation * _STANDARD.pdf(steps)


def _loss(leader: Standing, other: Standing) -> float:
    return expected_loss(leader.mean - other.mean, math.hypot(leader.deviation, other.deviation))
