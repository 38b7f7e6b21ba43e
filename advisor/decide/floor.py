"""The throughput that a larger model must keep, and the candidates that keep it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.decide.candidate import Candidate, Role
from advisor.decide.eligible import is_measured, why_not_eligible
from advisor.goal import Goal

__all__ = ["floor_rate", "keeps", "largest_so_far", "would_be_largest"]


def floor_rate(candidates: Iterable[Candidate], goal: Goal) -> float | None:
    """Samples per second to keep; ``None`` while the baseline that they are a share of has no measurement."""
    assert goal.floor is not None, "the goal 'bigger' has a floor"
    if goal.floor.samples_per_second is not None:
        return goal.floor.samples_per_second
    assert goal.floor.share_of_baseline is not None, "a floor is a rate or a share"
    rates = sorted(one.samples_per_second for one in candidates if one.role is Role.BASELINE and is_measured(one))
    return goal.floor.share_of_baseline * rates[(len(rates) - 1) // 2] if rates else None


def keeps(candidate: Candidate, goal: Goal, floor: float) -> bool:
    """Whether a candidate was measured at or above the floor and may win."""
    may_win = is_measured(candidate) and why_not_eligible(candidate, goal) is None
    return may_win and candidate.samples_per_second >= floor


def largest_so_far(candidates: Sequence[Candidate], goal: Goal) -> Candidate | None:
    """The largest model so far that keeps the floor; of equal ones the fastest."""
    floor = floor_rate(candidates, goal)
    if floor is None:
        return None
    able = [candidate for candidate in candidates if keeps(candidate, goal, floor)]
    return max(able, key=lambda candidate: (*candidate.size_order, candidate.samples_per_second), default=None)


def would_be_largest(candidate: Candidate, others: Sequence[Candidate], goal: Goal) -> bool:
    """Whether it would be the largest so far if its training is sound."""
    floor, record = floor_rate(others, goal), largest_so_far(others, goal)
    if floor is None or candidate.measurement is None or candidate.samples_per_second < floor:
        return False
    return record is None or candidate.size_order >= record.size_order
