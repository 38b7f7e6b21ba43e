"""The search ends when nothing untried is expected to be better by more than the noise, and says so in figures."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.goal import GoalKind
from advisor.search.propose.proposal import GainLeft
from advisor.session.stopping import StoppingRule

NOISE = GainLeft(expected=0.004, noise=0.011, measured=14)
GAIN = GainLeft(expected=0.2, noise=0.011, measured=14)


class FakeProposer:
    def __init__(self, *left: GainLeft | None) -> None:
        self.left = list(left)

    def gain_left(self) -> GainLeft | None:
        return self.left.pop(0)


def reasons(*left: GainLeft | None, kind: GoalKind = GoalKind.FASTER) -> list[str | None]:
    proposer: Any = FakeProposer(*left)
    rule = StoppingRule(proposer, kind)
    return [rule.reason() for _ in left]


def test_the_reason_has_what_is_expected_the_noise_and_the_trials() -> None:
    assert reasons(NOISE, NOISE, NOISE, NOISE) == [
        None,
        None,
        None,
        "nothing untried is expected to be faster by more than the noise: "
        "+0.4% expected, ±1.1% noise (after 14 trials)",
    ]


@pytest.mark.parametrize("between", [GAIN, None])
def test_it_must_stay_below_the_noise(between: GainLeft | None) -> None:
    assert reasons(NOISE, NOISE, NOISE, between, NOISE, NOISE, NOISE) == [None] * 7


def test_where_cost_counts_as_well_the_reason_says_so() -> None:
    reason = reasons(*[NOISE] * 4, kind=GoalKind.CHEAPEST)[-1]
    assert reason is not None
    assert "cheaper or faster" in reason


@pytest.mark.parametrize(("noise", "most"), [(0.004, 0.002), (0.01, 0.005), (0.08, 0.005)])
def test_half_of_the_noise_is_lost_in_it_and_half_a_percent_is_little_in_any(noise: float, most: float) -> None:
    assert GainLeft(expected=0.99 * most, noise=noise, measured=9).is_negligible
    assert not GainLeft(expected=1.01 * most, noise=noise, measured=9).is_negligible


def what_more(left: GainLeft | None, kind: GoalKind = GoalKind.FASTER) -> str:
    proposer: Any = FakeProposer(left)
    return StoppingRule(proposer, kind).what_more()


def test_what_no_time_is_left_for_has_what_may_still_be_gained() -> None:
    assert what_more(GAIN) == "; the best of them is expected to be 20% faster"
    assert what_more(GAIN, GoalKind.CHEAPEST) == "; the best of them is expected to be 20% cheaper or faster"


def test_where_the_rest_is_negligible_that_is_said_instead_of_a_figure() -> None:
    assert what_more(NOISE) == "; none of them is expected to be better by more than the noise"


def test_where_too_little_was_measured_to_tell_that_is_said() -> None:
    assert what_more(None) == "; too little was measured to tell what they may bring"
