from __future__ import annotations

import pytest

from advisor.decide.score import gain, maximizes, score, scores
from advisor.goal import GoalKind

from .costs import cheapest, timed
from .examples import baseline, goal


def test_faster_is_scored_by_samples_per_second_and_more_is_better() -> None:
    assert score(baseline(120.0), goal()) == 120.0
    assert maximizes(GoalKind.FASTER)
    assert gain(120.0, 100.0, GoalKind.FASTER) == pytest.approx(0.2)
    assert gain(80.0, 100.0, GoalKind.FASTER) == pytest.approx(-0.2)


def test_cheapest_is_scored_by_the_cost_of_an_iteration_and_less_is_better() -> None:
    one = timed(0.5, gpu_count=4)
    assert score(one, cheapest()) == pytest.approx(0.002)
    assert not maximizes(GoalKind.CHEAPEST)
    assert gain(0.002, 0.003, GoalKind.CHEAPEST) == pytest.approx(0.5)
    assert gain(0.003, 0.002, GoalKind.CHEAPEST) == pytest.approx(-1 / 3)


def test_a_study_of_two_aims_gets_cost_and_latency() -> None:
    assert scores(timed(0.5, gpu_count=4), cheapest()) == pytest.approx((0.002, 0.5))
