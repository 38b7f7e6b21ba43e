"""Choose among what was measured, and compare whoever leads with the reference run until a leader stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.eligible import is_faithful, is_measured, is_outpaced, why_not_eligible, worth_checking
from advisor.decide.floor import would_be_largest
from advisor.goal import Goal, GoalKind
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.ledger import Ledger
from advisor.session.trials.guard import Guard

__all__ = ["recommend"]


def recommend(
    context: StudyContext, choose: Callable[[Sequence[Candidate]], Recommendation], guard: Guard
) -> Recommendation:
    """Recommend a winner that was compared with the reference run, whatever its methods promise.

    The next best is compared too, and for ``cheapest`` every point of the frontier, because the answer names them as
    alternatives. When time is up a leader stays uncompared, and the answer says so.

    Candidates ruled out only by their first losses are compared first: an earlier run of the study may have had no time
    for it, and three losses never distinguish a method that changes what is learned from a broken one.

    Raises:
        TrialError: None is left that may win.
    """
    ledger, goal = context.ledger, context.goal
    while True:
        if any(_compare(one, ledger, guard) for one in _doubted(ledger.candidates, goal)):
            continue
        recommendation = choose(ledger.candidates)
        if not any(_compare(leader, ledger, guard) for leader in _leaders(recommendation, goal)):
            return recommendation


def _doubted(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """Candidates that would lead but for their first losses, the fastest first."""
    doubted = [one for one in candidates if worth_checking(one, candidates, goal) and not is_faithful(one, goal)]
    if goal.kind is GoalKind.BIGGER:
        doubted = [one for one in doubted if would_be_largest(one, candidates, goal)]
    return sorted(doubted, key=lambda one: one.samples_per_second, reverse=True)


def _leaders(recommendation: Recommendation, goal: Goal) -> list[Candidate]:
    able = [one for one in recommendation.ranking if why_not_eligible(one, goal) is None and not is_outpaced(one)]
    if recommendation.frontier is not None:
        points = {point.policy.key for point in recommendation.frontier.points}
        others = [one for one in able if one.policy.key in points]
    elif recommendation.growth is not None:
        others = []
    else:
        others = [one for one in able if _methods(one) != _methods(recommendation.winner)][:1]
    return [recommendation.winner, *others]


def _compare(leader: Candidate, ledger: Ledger, guard: Guard) -> bool:
    """Compare a leader, and with it all candidates that differ only in batch; return whether that was new."""
    checked = guard.checked(leader)
    if (checked.guard, checked.not_compared) == (leader.guard, leader.not_compared):
        return False

    def compared(candidate: Candidate) -> Candidate:
        alike = _methods(candidate) == _methods(leader) and candidate.model_size == leader.model_size
        return guard.checked(candidate) if alike and is_measured(candidate) else candidate

    ledger.replace(compared)
    return True


def _methods(candidate: Candidate) -> Combination:
    return Combination.of(candidate.policy)
