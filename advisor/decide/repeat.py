"""Which leader is worth one more measurement before one of them is recommended.

The best of many noisy figures was lucky. The search's model sees each figure beside all others and is rarely fooled by
it. So a figure that leads against what the model thinks is measured again, and so is whatever may still turn out to be
better by something that matters: the expected value of information (Frazier, Powell and Dayanik, A knowledge-gradient
policy for sequential information collection, 2008, section 3), with a bound instead of a price. Where the best figure
is that of the combination that is thought best of, and to choose it is expected to lose less than half a percent,
nothing is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from advisor.search.propose.standing import Standing

__all__ = ["MOST_REPEATED", "standing_figure", "worth_repeating"]

MOST_REPEATED = 8
"""Repetitions in all: what is not told apart by then hardly matters."""

_ENOUGH = 0.005
"""Share of the best throughput that a choice may lose, as far as is known, without another measurement."""

_OFTEN = 3
"""Figures of one combination: of three the median stands."""

_STANDARD = NormalDist()


def standing_figure(figures: Sequence[float]) -> float:
    """The figure that stands for several, more of it being better: the median, of two the worse."""
    return sorted(figures)[(len(figures) - 1) // 2]


def worth_repeating(standings: Mapping[str, Standing], figures: Mapping[str, Sequence[float]]) -> str | None:
    """The combination to measure once more; ``None`` where nothing is expected to come of it.

    Args:
        standings: What is thought of everything that may win, the repetitions so far counted in.
        figures: What was measured of each of these, more of it being better.
    """
    open_ones = {one: standing for one, standing in standings.items() if len(figures[one]) < _OFTEN}
    leader = min(standings, key=lambda one: standings[one].mean, default=None)
    if leader is None or len(standings) == 1:
        return None
    lucky = max(figures, key=lambda one: standing_figure(figures[one]))
    if lucky != leader and lucky in open_ones:
        return lucky
    losses = {one: _loss(standings[leader], standing) for one, standing in standings.items() if one != leader}
    rival = max(losses, key=lambda one: losses[one])
    known_less = [one for one in (rival, leader) if one in open_ones]
    if losses[rival] < _ENOUGH or not known_less:
        return None
    return max(known_less, key=lambda one: standings[one].deviation)


def _loss(leader: Standing, other: Standing) -> float:
    """By what share the other is better where it is, times how likely that is."""
    deviation = math.hypot(leader.deviation, other.deviation)
    behind = leader.mean - other.mean
    steps = behind / deviation
    return behind * _STANDARD.cdf(steps) + deviation * _STANDARD.pdf(steps)
