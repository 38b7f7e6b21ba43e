"""The numbers that points of the cost-latency plane go by, the same in the tables, the plot and the sentences."""

from __future__ import annotations

from typing import NamedTuple

from advisor.decide.candidate import Candidate, DominatedPoint, FrontierPoint, Recommendation, Role

__all__ = ["ITERATIONS", "Entry", "entries", "worse_words"]

ITERATIONS = 1000
"""Costs are shown for so many iterations: a single one costs fractions of a cent."""


class Entry(NamedTuple):
    """A point with its number.

    Attributes:
        number: From 1; the frontier comes first, the cheapest first.
        candidate: The policy with all its measurements.
        point: Its cost and latency.
        dominated: What makes it pointless; ``None`` on the frontier.
    """

    number: int
    candidate: Candidate
    point: FrontierPoint
    dominated: DominatedPoint | None = None

    @property
    def usd(self) -> float:
        """US dollars for :data:`ITERATIONS`."""
        return self.point.cost_usd * ITERATIONS


def entries(answer: Recommendation, *, dominated: int) -> list[Entry]:
    """The frontier, then the cheapest dominated points; the baseline and the hand-tuned setting always among them.

    Args:
        answer: A recommendation with a frontier.
        dominated: Most dominated points, not counting those two.
    """
    frontier = answer.frontier
    assert frontier is not None, "only the goal 'cheapest' has points"
    candidates = {one.policy.key: one for one in answer.ranking}
    first = [Entry(number, candidates[one.policy.key], one) for number, one in enumerate(frontier.points, 1)]
    others = [
        Entry(number, candidates[one.point.policy.key], one.point, one)
        for number, one in enumerate(frontier.dominated, len(first) + 1)
    ]
    return first + [
        one for place, one in enumerate(others) if place < dominated or one.candidate.role is not Role.SEARCHED
    ]


def worse_words(entry: Entry, answer: Recommendation) -> str:
    """Why a dominated point is pointless: ``"1.25x time, 1.25x cost of 2"``."""
    frontier, dominated = answer.frontier, entry.dominated
    assert frontier is not None
    assert dominated is not None
    if dominated.by is None:
        return "stopped early"
    better = frontier.points[dominated.by]
    time = entry.point.latency_seconds / better.latency_seconds
    cost = entry.point.cost_usd / better.cost_usd
    noise = " (inside the noise)" if dominated.inside_noise else ""
    return f"{time:.2f}x time, {cost:.2f}x cost of {dominated.by + 1}{noise}"
