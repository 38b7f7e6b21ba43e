from __future__ import annotations

import pytest

from advisor.decide.score import gain, maximizes, score
from advisor.errors import OptionError
from advisor.problem.goal import GoalKind

from .examples import goal, measurement


def test_faster_is_scored_by_samples_per_second_and_more_is_better() -> None:
    assert score(measurement(120.0), goal()) == 120.0
    assert maximizes(GoalKind.FASTER)
    assert gain(120.0, 100.0, GoalKind.FASTER) == pytest.approx(0.2)
    assert gain(80.0, 100.0, GoalKind.FASTER) == pytest.approx(-0.2)


def test_a_goal_that_has_no_score_yet_says_so() -> None:
    with pytest.raises(OptionError, match="must be 'faster' or 'bigger' in this version, but got 'cheapest'"):
        score(measurement(1.0), goal(kind=GoalKind.CHEAPEST))
