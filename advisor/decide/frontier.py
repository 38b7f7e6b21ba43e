"""The Pareto frontier of cost against latency, with differences inside the noise left out.

At a fixed price the cost of a policy is proportional to devices x latency. So the exact frontier has at most one point
for each number of devices (the fastest there), and more devices earn a place only by being faster than fewer.

Two measurements closer than their noise are a tie (:func:`~advisor.decide.ranking.noise_of_lead`), here as for
``faster``:

1. Every exact point is represented by the simplest policy that ties with it in both cost and latency (never by one that
   plain training beats in both).
2. A point dominates another *up to noise* if it is clearly better in one objective and ties in the other: twice the
   devices for half a percent of latency are no offer. Points are visited by growing cost x latency, and each is kept
   unless a kept one dominates it. So no point is dropped in favour of one that is itself dropped, and a chain of small
   differences never adds up to a large one. (Additive and relative slack in dominance: Laumanns et al.,
   "Combining convergence and diversity in evolutionary multiobjective optimization", 2002.)

A tie never crosses a limit that the user set: a point within it is displaced only by another within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from advisor.decide.candidate import Candidate, DominatedPoint, FrontierPoint, Role
from advisor.decide.cost import cost_of
from advisor.decide.eligible import is_outpaced
from advisor.decide.ranking import Ranking, noise_of_lead, simplicity
from advisor.goal import Goal

__all__ = ["Placed", "dominated_points", "frontier_of", "placed"]


class Placed(NamedTuple):
    """A candidate at its place in the plane of cost and latency."""

    candidate: Candidate
    point: FrontierPoint

    @property
    def costs(self) -> tuple[float, float]:
        """US dollars and seconds per iteration."""
        return self.point.cost_usd, self.point.latency_seconds

    @property
    def product(self) -> float:
        """Cost x latency: a percent of one weighs as much as a percent of the other."""
        return math.prod(self.costs)

    def dominates(self, other: Placed) -> bool:
        """Whether it is better in one objective and no worse in the other, ignoring noise."""
        ahead = [theirs - mine for mine, theirs in zip(self.costs, other.costs, strict=True)]
        return min(ahead) >= 0 and max(ahead) > 0


def placed(candidate: Candidate, goal: Goal) -> Placed:
    """Place a measured candidate in the plane of cost and latency."""
    return Placed(candidate, cost_of(candidate, goal))


def frontier_of(ranking: Ranking, goal: Goal, *, within_limit: Callable[[Placed], bool]) -> tuple[Placed, ...]:
    """The points of the frontier, the cheapest first, by which of them are within the user's limit."""
    everything = [placed(candidate, goal) for candidate in ranking.finished]
    exact = [one for one in everything if not any(other.dominates(one) for other in everything)]
    own = next((placed(one, goal) for one in ranking.eligible if one.role is Role.BASELINE), None)

    def may_displace(one: Placed, other: Placed) -> bool:
        return within_limit(one) or not within_limit(other)

    def stands_in(one: Placed, for_point: Placed) -> bool:
        if own is not None and own.dominates(one) and one is not for_point:
            return False  # never recommend a policy that measured worse than the user's own setting in both
        return may_displace(one, for_point) and all(_ties(one, for_point, ranking))

    representatives: dict[str, Placed] = {}
    for point in exact:
        simplest = min((one for one in everything if stands_in(one, point)), key=lambda one: simplicity(one.candidate))
        representatives[simplest.candidate.policy.key] = simplest

    kept: list[Placed] = []
    for point in sorted(representatives.values(), key=lambda one: (one.product, one.point.cost_usd)):
        if not any(may_displace(one, point) and _no_worse_up_to_noise(one, point, ranking) for one in kept):
            kept.append(point)
    return tuple(sorted(kept, key=lambda one: one.costs))


def dominated_points(frontier: Sequence[Placed], ranking: Ranking, goal: Goal) -> tuple[DominatedPoint, ...]:
    """All other eligible policies, the cheapest first, each with the point that dominates it."""
    keys = {one.candidate.policy.key for one in frontier}
    others = [placed(candidate, goal) for candidate in ranking.eligible if candidate.policy.key not in keys]
    return tuple(_dominated(one, frontier, ranking) for one in others)


def _dominated(one: Placed, frontier: Sequence[Placed], ranking: Ranking) -> DominatedPoint:
    positions = range(len(frontier))
    exactly = [position for position in positions if frontier[position].dominates(one)]
    if exactly:
        # Of several, the one with the largest lead in its weaker objective is the plainest reason.
        by = max(exactly, key=lambda position: _weaker_lead(frontier[position], one))
        return DominatedPoint(point=one.point, by=by, inside_noise=False)
    up_to_noise = [position for position in positions if _no_worse_up_to_noise(frontier[position], one, ranking)]
    if not up_to_noise and is_outpaced(one.candidate):
        return DominatedPoint(point=one.point, by=None, inside_noise=False)
    # A tie with a tie of a point: the closest point represents it.
    nearest = max(up_to_noise or positions, key=lambda position: _weaker_lead(frontier[position], one))
    return DominatedPoint(point=one.point, by=nearest, inside_noise=True)


def _weaker_lead(better: Placed, worse: Placed) -> float:
    return min(theirs / mine for mine, theirs in zip(better.costs, worse.costs, strict=True))


def _no_worse_up_to_noise(one: Placed, other: Placed, ranking: Ranking) -> bool:
    return all(
        is_tie or mine <= theirs
        for is_tie, mine, theirs in zip(_ties(one, other, ranking), one.costs, other.costs, strict=True)
    )


def _ties(one: Placed, other: Placed, ranking: Ranking) -> tuple[bool, ...]:
    """Whether they tie in cost, and in latency: one noise, as both are proportional at a fixed number of devices."""
    noise = noise_of_lead(one.candidate, other.candidate, ranking.repeats)
    pairs = zip(one.costs, other.costs, strict=True)
    return tuple(max(pair) / min(pair) - 1 <= noise for pair in pairs)
