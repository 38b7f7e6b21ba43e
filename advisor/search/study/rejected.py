"""What Optuna is told of points that are not run: impossible, tried already, or without a value."""

from __future__ import annotations

import math

from optuna.study import Study, StudyDirection
from optuna.trial import Trial, TrialState

from advisor.search.propose.history import CONFLICT, DUPLICATE

__all__ = ["tell_conflict", "tell_duplicate", "worst_values"]


def tell_conflict(study: Study, trial: Trial, reason: str | None) -> None:
    """Complete an impossible combination without running it, so that Optuna's model learns to avoid it."""
    trial.set_user_attr(CONFLICT, reason or "not a valid combination on these devices")
    trial.set_constraint(CONFLICT, 1.0)
    study.tell(trial, worst_values(study))


def tell_duplicate(study: Study, trial: Trial, number: int | None) -> None:
    """Answer a point that was tried with the outcome it had.

    Args:
        study: The study.
        trial: The trial that proposes it once more.
        number: Number of the trial that tried it; ``None`` where nothing is known of this very point: it is under way,
            or excluded with its whole combination.
    """
    original = None if number is None else study.get_trials(deepcopy=False)[number]
    if original is None or original.values is None:
        trial.set_user_attr(DUPLICATE, -1)
        trial.set_constraint("excluded", 1.0)
        study.tell(trial, worst_values(study))
        return
    trial.set_user_attr(DUPLICATE, original.number)
    for name, amount in original.constraints.items():
        trial.set_constraint(name, amount)
    study.tell(trial, original.values)


def worst_values(study: Study) -> tuple[float, ...]:
    """The worst value so far of every objective; before the first, one that is worse than any."""
    larger_is_better = [direction is StudyDirection.MAXIMIZE for direction in study.directions]
    told = [
        trial.values
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if all(map(math.isfinite, trial.values))
    ]
    if not told:
        return tuple(-math.inf if larger else math.inf for larger in larger_is_better)
    return tuple(
        min(values) if larger else max(values)
        for larger, values in zip(larger_is_better, zip(*told, strict=True), strict=True)
    )
