"""Choose for ``cheapest``: a point of the cost-latency frontier."""

from __future__ import annotations

from collections.abc import Mapping

from advisor.decide.candidate import Candidate, Frontier, Recommendation, Role
from advisor.decide.frontier import Placed, dominated_points, frontier_of, placed
from advisor.decide.noise import SMALLEST_NOISE
from advisor.decide.preference import knee_of, pick_of, within_limit
from advisor.decide.ranking import Ranking, noise_of_lead
from advisor.decide.score import gain, scores
from advisor.goal import Goal

__all__ = ["choose_cheapest"]


def choose_cheapest(
    ranking: Ranking, goal: Goal, *, refused_settings: Mapping[str, str], untried: int, stopped_because: str
) -> Recommendation:
    """Find the frontier and pick the point that the user prefers.

    Args:
        ranking: What was measured.
        goal: The goal, with a price.
        refused_settings: Method setting -> reason, for settings that no policy could use here.
        untried: How many combinations were not tried.
        stopped_because: Why the search ended.

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
        tie = (
            _stands_for_a_better(points[pick], ranking, goal)
            if winner is baseline
            else _ties(winner, baseline, goal, noise)
        )
    return Recommendation(
        winner=winner,
        baseline=baseline,
        hand_tuned=ranking.in_role(Role.HAND_TUNED),
        ranking=ranking.candidates,
        not_measured=ranking.not_measured,
        refused_settings=dict(refused_settings),
        tie=tie,
        noise=noise,
        repeats=ranking.repeats,
        why=(),
        untried=untried,
        stopped_because=stopped_because,
        frontier=Frontier(
            points=tuple(one.point for one in points),
            dominated=dominated_points(points, ranking, goal),
            pick=pick,
            knee=knee_of(points),
        ),
    )


def _ties(one: Candidate, other: Candidate, goal: Goal, noise: float) -> bool:
    pairs = zip(scores(one, goal), scores(other, goal), strict=True)
    return all(abs(gain(mine, theirs, goal.kind)) <= noise for mine, theirs in pairs)


def _stands_for_a_better(one: Placed, ranking: Ranking, goal: Goal) -> bool:
    return any(placed(candidate, goal).dominates(one) for candidate in ranking.finished)
