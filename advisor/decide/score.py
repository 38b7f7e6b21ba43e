"""Score candidates for a goal. The only place that knows which direction is better."""

from __future__ import annotations

import math

from advisor.decide.candidate import Candidate
from advisor.decide.cost import cost_of
from advisor.goal import Goal, GoalKind

__all__ = ["directions", "gain", "gain_over", "maximizes", "objectives", "score", "scores"]


def maximizes(kind: GoalKind) -> bool:
    """Whether larger scores are better for a goal."""
    return kind is not GoalKind.CHEAPEST


def score(candidate: Candidate, goal: Goal) -> float:
    """The metric of a goal as one number, of a measured candidate.

    For ``faster``, and for ``bigger`` at one size of the model: samples per second (Liu 2023, section 3). For
    ``cheapest``: US dollars per iteration; the choice itself weighs two numbers (:func:`scores`).
    """
    return cost_of(candidate, goal).cost_usd if goal.kind is GoalKind.CHEAPEST else candidate.samples_per_second


def scores(candidate: Candidate, goal: Goal) -> tuple[float, float]:
    """For ``cheapest``: cost (US dollars per iteration) and latency (seconds per iteration); less is better in both."""
    assert goal.kind is GoalKind.CHEAPEST, f"only one goal has two scores, not {goal.kind.value}"
    cost = cost_of(candidate, goal)
    return cost.cost_usd, cost.latency_seconds


def directions(kind: GoalKind) -> tuple[bool, ...]:
    """For each of a goal's :func:`objectives`, whether larger is better."""
    return (False, False) if kind is GoalKind.CHEAPEST else (maximizes(kind),)


def objectives(candidate: Candidate, goal: Goal) -> tuple[float, ...]:
    """The objective values of a measured candidate: one number, or for ``cheapest`` cost and latency."""
    return scores(candidate, goal) if goal.kind is GoalKind.CHEAPEST else (score(candidate, goal),)


def gain(value: float, reference: float, kind: GoalKind) -> float:
    """Relative gain of ``value`` over ``reference``; negative when it is worse."""
    assert reference > 0, f"a score is positive, got {reference}"
    return value / reference - 1 if maximizes(kind) else reference / value - 1


def gain_over(candidate: Candidate, baseline: Candidate, goal: Goal) -> float | None:
    """Relative gain of a measured candidate over a measured baseline, in the metric of the goal.

    For ``bigger`` that is the size of the model: its parameters, or where these do not change the product of the
    arguments that set the size. Throughputs of different models do not compare.

    Returns:
        The share; ``None`` where two sizes have nothing in common to count.
    """
    if goal.kind is not GoalKind.BIGGER:
        return gain(score(candidate, goal), score(baseline, goal), goal.kind)
    if candidate.model_size == baseline.model_size:
        return 0.0
    if candidate.parameter_count and baseline.parameter_count and candidate.parameter_count != baseline.parameter_count:
        return candidate.parameter_count / baseline.parameter_count - 1
    mine, theirs = math.prod(candidate.model_size.values()), math.prod(baseline.model_size.values())
    comparable = candidate.model_size.keys() == baseline.model_size.keys() and mine > 0 and theirs > 0
    return mine / theirs - 1 if comparable else None
