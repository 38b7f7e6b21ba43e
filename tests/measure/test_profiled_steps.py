"""Time that is communication and no computing, from the spans of both."""

from __future__ import annotations

import pytest

from advisor.measure.speed.profiled_steps import Span, without
from advisor.measure.step_split import PhaseSplit, StepSplit
from advisor.phase import Phase


@pytest.mark.parametrize(
    ("spans", "others", "left"),
    [
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(2, 3), (5, 7)], [(0, 2), (3, 5), (7, 10)]),
        ([(2, 4), (6, 8)], [(0, 3), (7, 9)], [(3, 4), (6, 7)]),
        ([(2, 4), (6, 8)], [(0, 10)], []),
        ([(2, 4)], [(0, 2), (4, 6)], [(2, 4)]),
    ],
)
def test_what_is_in_none_of_the_others(spans: list[Span], others: list[Span], left: list[Span]) -> None:
    assert without(spans, others) == left


def test_shares_stay_and_seconds_are_those_of_the_measured_step() -> None:
    phases = (
        PhaseSplit(phase=Phase.FORWARD, seconds=1.0, communication_seconds=0.0, exposed_seconds=0.0),
        PhaseSplit(phase=Phase.BACKWARD, seconds=3.0, communication_seconds=2.0, exposed_seconds=1.0),
    )
    split = StepSplit(phases=phases, steps=5).scaled(8.0)
    assert split.seconds == 8.0
    assert (split.exposed_share, split.hidden_share) == (0.25, 0.25)
    assert split.phases[1].seconds == 6.0
