"""Choose the policy to train with from everything that was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.decide.candidate import Candidate, Frontier, Recommendation, Role
from advisor.decide.eligible import is_measured
from advisor.decide.floor import floor_rate
from advisor.decide.frontier import dominated_points, frontier_of, placed
from advisor.decide.largest import choose_largest
from advisor.decide.noise import SMALLEST_NOISE, won_in_short_steps
from advisor.decide.preference import knee_of, pick_of, within_limit
from advisor.decide.ranking import Ranking, noise_of_lead, ranked, simplicity
from advisor.decide.score import gain, score, scores
from advisor.goal import Goal, GoalKind

__all__ = ["choose"]


def choose(
    candidates: Sequence[Candidate],
    goal: Goal,
    *,
    refused_settings: Mapping[str, str],
    untried: int,
    stopped_because: str,
) -> Recommendation:
    """Rank the measured candidates and pick the winner.

    The fastest eligible candidate wins, unless a simpler one is so close that the difference may be chance, and did not
    lose to it in alternating steps: then the simplest of those wins, preferably not at a smaller batch than the user's
    own. Candidates of the same policy are repetitions, represented by the median score, and their spread counts as
    noise. A measurement that was cut short because it was outpaced cannot win while there is another. For ``cheapest``
    the winner is a point of the frontier, for ``bigger`` the largest model
    (:func:`~advisor.decide.largest.choose_largest`). The report fills in ``why``.

    Raises:
        NothingFitsError: No policy fits below the memory limit.
        FloorNotMetError: ``bigger``: no size keeps the floor.
        NothingMeasuredError: No policy could be measured, or none of those measured may win.
        PreferenceNotMetError: ``cheapest``: no point is within the limit that was asked for.
    """
    if goal.kind is GoalKind.BIGGER and (
        any(is_measured(candidate) for candidate in candidates) or floor_rate(candidates, goal) is None
    ):
        chosen = choose_largest(candidates, goal)
    elif goal.kind is GoalKind.CHEAPEST:
        chosen = _choose_cheapest(ranked(candidates, goal), goal)
    else:
        chosen = _choose_fastest(ranked(candidates, goal), goal)
    return msgspec.structs.replace(
        chosen, refused_settings=dict(refused_settings), untried=untried, stopped_because=stopped_because
    )


def _choose_fastest(ranking: Ranking, goal: Goal) -> Recommendation:
    best = ranking.finished[0]
    floor = next((score(one, goal) for one in ranking.eligible if one.role is Role.BASELINE), None)

    def ties_with_best(candidate: Candidate) -> bool:
        if floor is not None and gain(score(candidate, goal), floor, goal.kind) < 0:
            return False  # a wide interval reaches far: what measured below the user's own setting is no advice
        if candidate is not best and candidate.loses_to_larger_batch:
            return False  # alternating steps resolve far smaller differences than two separate measurements
        if candidate.role is not Role.BASELINE and won_in_short_steps(best, candidate, ranking.not_measured):
            return False  # so do those of two combinations; of a dozen beside the baseline one is lucky
        # The best may be known badly, and another one surely be faster.
        return all(
            gain(score(other, goal), score(candidate, goal), goal.kind)
            <= noise_of_lead(other, candidate, ranking.repeats)
            for other in ranking.finished[: ranking.finished.index(candidate)]
        )

    baseline = ranking.in_role(Role.BASELINE)
    own_batch = 0 if baseline is None else baseline.policy.global_batch

    def order(candidate: Candidate) -> tuple[object, ...]:
        # A smaller batch than the user's own is no simpler for being smaller.
        return candidate.policy.global_batch < own_batch, *simplicity(candidate)

    ties = [candidate for candidate in ranking.finished if ties_with_best(candidate)]
    if baseline in ranking.finished and baseline not in ties:
        # Something is surely faster than the baseline, and so must be what is recommended.
        surely = [one for one in ties if _is_surely_faster(one, baseline, ranking, goal)]
        ties = surely or ties
    winner = min(ties, key=order)
    noise, tie = max(SMALLEST_NOISE, ranking.repeats), False
    if baseline is not None:
        # When the baseline wins a tie, its distance from the fastest matters.
        against = best if winner is baseline else winner
        noise = noise_of_lead(against, baseline, ranking.repeats)
        ahead = gain(score(against, goal), score(baseline, goal), goal.kind)
        tie = against is not baseline and abs(ahead) <= noise
    return ranking.recommend(winner, tie=tie, noise=noise)


def _is_surely_faster(one: Candidate, other: Candidate, ranking: Ranking, goal: Goal) -> bool:
    return gain(score(one, goal), score(other, goal), goal.kind) > noise_of_lead(one, other, ranking.repeats)


def _choose_cheapest(ranking: Ranking, goal: Goal) -> Recommendation:
    """The point of the frontier that the user prefers.

    It is a tie when it is within the noise of plain training in both cost and latency, or is plain training and stands
    for what measured better.
    """
    points = frontier_of(ranking, goal, within_limit=lambda one: within_limit(one, goal.preference))
    pick = pick_of(points, goal.preference)
    winner, baseline = points[pick].candidate, ranking.in_role(Role.BASELINE)
    noise, tie = max(SMALLEST_NOISE, ranking.repeats), False
    if baseline is not None:
        noise = noise_of_lead(winner, baseline, ranking.repeats)
        if winner is baseline:
            better = [one for one in ranking.finished if placed(one, goal).dominates(points[pick])]
            tie = bool(better)
            if better:  # the distance of what it stands for matters
                against = max(better, key=lambda one: gain(score(one, goal), score(baseline, goal), goal.kind))
                noise = noise_of_lead(against, baseline, ranking.repeats)
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
