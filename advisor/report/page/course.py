"""The course of a search: what was tried in which order, when, and what led."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.decide.candidate import Candidate
from advisor.decide.eligible import best_so_far
from advisor.decide.floor import largest_so_far
from advisor.goal import Goal, GoalKind
from advisor.report.page.finished import StoredTrial
from advisor.report.page.pictures import CourseStep
from advisor.report.page.tried import Tried

__all__ = ["course"]


def course(tried: Tried) -> Iterator[CourseStep]:
    """One step for each trial of a policy; what is known of a policy now decides whether it led then."""
    goal = tried.study.answer.goal
    by_identity = {_identity(one): one for one in tried.study.tried}  # the last line of each, at the place of its first
    seconds = {trial.result.key: trial.result.wall_seconds for trial in tried.study.trials}
    ends = _ends(tried.study.trials)
    before: list[Candidate] = []
    best: Candidate | None = None
    number = 0
    for one in by_identity.values():
        name = tried.id_of(one)
        if not name:
            continue  # tried after this answer was given
        number += 1
        before.append(one)
        best = _best(before, best, goal)
        key = one.trial_key or tried.profiled_by.get(tried.combination_of(one), "")
        yield CourseStep(
            number=number,
            policy=name,
            ended_at_seconds=ends.get(key),
            took_seconds=seconds.get(key) or None,
            best=tried.id_of(best),
        )


def _best(candidates: Sequence[Candidate], best: Candidate | None, goal: Goal) -> Candidate | None:
    if goal.kind is GoalKind.BIGGER:
        return largest_so_far(candidates, goal)  # the floor may be known only later
    return best_so_far((candidates[-1], *(() if best is None else (best,))), goal)


def _ends(trials: Sequence[StoredTrial]) -> dict[str, float]:
    """Key of a trial -> seconds that had been spent on trials when it ended: pauses between runs do not count.

    Empty where a trial's end was not recorded, as in older studies.
    """
    if any(trial.result.ended_at == 0 for trial in trials):
        return {}
    ends, spent = {}, 0.0
    for trial in trials:
        spent += trial.result.wall_seconds
        ends[trial.result.key] = spent
    return ends


def _identity(one: Candidate) -> object:
    """What two lines of one candidate share; as the ledger has it."""
    end = one.outcome if one.trial_key is None else one.trial_key
    return end, one.role, one.policy.key, tuple(one.model_size.items())
