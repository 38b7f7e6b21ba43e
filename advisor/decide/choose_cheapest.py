"""Choose for ``cheapest``: a point of the cost-latency frontier."""

from __future__ import annotations

from advisor.decide.candidate import Frontier, Recommendation, Role
from advisor.decide.frontier import dominated_points, frontier_of, placed
from advisor.decide.noise import SMALLEST_NOISE
from advisor.decide.preference import knee_of, pick_of, within_limit
from advisor.decide.ranking import Ranking, noise_of_lead
from advisor.decide.score import gain, scores
from advisor.goal import Goal

__all__ = ["choose_cheapest"]


def choose_cheapest(ranking: Ranking, goal: Goal) -> Recommendation:
    """Find the frontier and pick the point that the user prefers.

    Returns:
        The recommendation with its frontier. Its ranking is by cost. It is a tie when the winner is within the noise
        of plain training in both cost and latency, or is plain training and stands for what measured better.

    Raises:
        PreferenceNotMetError: No point is within the limit that was asked for.
    """
    points = frontier_of(ranking, goal, within_limit=lambda one: within_limit(one, goal.preference))
    pick = pick_of(points, goal.preference)
    winner, baseline = points[pick].candidate, ranking.in_role(Role.BASELINE)
    noise, tie = max(SMALLEST_NOISE, ranking.repeats), False
    if baseline is not None:
        noise = noise_of_lead(winner, baseline, ranking.repeats)
        if winner is baseline:
            tie = any(placed(candidate, goal).dominates(points[pick]) for candidate in ranking.finished)
        else:
            pairs = zip(scores(winner, goal), scores(baseline, goal), strict=True)
            tie = all(abs(gain(mine, theirs, goal.kind)) <= noise for mine, theirs in pairs)
    frontier = Frontier(
        points=tuple(one.point for one in points),
        dominated=dominated_points(points, ranking, goal),
        pick=pick,
        knee=knee_of(points),
    )
    return ranking.recommend(winner, tie=tie, noise=noise, frontier=frontier)
