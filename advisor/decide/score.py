"""What a measurement is worth for a goal. The only place that knows which direction is better."""

from __future__ import annotations

from advisor.errors import OptionError
from advisor.measure.measurement import Measurement
from advisor.problem.goal import Goal, GoalKind

__all__ = ["gain", "maximizes", "score"]


def maximizes(kind: GoalKind) -> bool:
    """Whether larger scores are better for a goal.

    Raises:
        OptionError: The goal has no score in this version.
    """
    _check(kind)
    return True


def score(measurement: Measurement, goal: Goal) -> float:
    """The metric of a goal at one size of the model: samples per second (Liu 2023, section 3).

    Raises:
        OptionError: The goal has no score in this version.
    """
    _check(goal.kind)
    return measurement.samples_per_second


def gain(value: float, reference: float, kind: GoalKind) -> float:
    """By what share ``value`` is better than ``reference``; negative when it is worse.

    Raises:
        OptionError: The goal has no score in this version.
    """
    assert reference > 0, f"a score is positive, got {reference}"
    return value / reference - 1 if maximizes(kind) else reference / value - 1


def _check(kind: GoalKind) -> None:
    if kind is GoalKind.CHEAPEST:
        raise OptionError(f"The goal must be 'faster' or 'bigger' in this version, but got {kind.value!r}.")
