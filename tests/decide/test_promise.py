"""The answer promises what its confirmation found, as surely as the search and the confirmation agree."""

from __future__ import annotations

import pytest

from advisor.decide.promise import promised
from advisor.measure.in_turn import Speedup


def speedup(value: float, spread: float = 0.02, rounds: int = 6) -> Speedup:
    return Speedup(value=value, low=value / (1 + spread), high=value * (1 + spread), rounds=rounds)


@pytest.mark.parametrize("searched", [None, 1.2, 1.5, 2.5])
def test_the_search_does_not_move_the_value(searched: float | None) -> None:
    """It found a winner, and winners are more often lucky than not."""
    found = promised(speedup(1.5), [] if searched is None else [speedup(searched)])
    assert found.value == 1.5
    assert found.rounds == 6


def test_the_interval_widens_with_the_distance_between_search_and_confirmation() -> None:
    spreads = [promised(speedup(1.5), [speedup(searched)]).relative_spread for searched in (1.5, 1.6, 1.8, 2.5)]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 2 * spreads[0]


def test_a_search_that_was_too_low_is_as_far_off_as_one_that_was_too_high() -> None:
    lower, higher = (promised(speedup(1.5), [speedup(one)]) for one in (1.5 / 1.2, 1.5 * 1.2))
    assert lower.relative_spread == pytest.approx(higher.relative_spread)


def test_agreement_makes_it_surer_than_no_second_figure() -> None:
    assert promised(speedup(1.5), [speedup(1.5)]).relative_spread < promised(speedup(1.5), []).relative_spread


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.2])
@pytest.mark.parametrize("searched", [[], [speedup(1.5)], [speedup(1.3), speedup(1.4)]])
def test_it_is_never_narrower_than_the_confirmations_own(spread: float, searched: list[Speedup]) -> None:
    confirmed = speedup(1.5, spread)
    found = promised(confirmed, searched)
    assert found.low < confirmed.low
    assert found.high > confirmed.high


def test_two_processes_that_agree_perfectly_may_still_differ_from_a_third() -> None:
    assert promised(speedup(1.5, 0.0), [speedup(1.5, 0.0)]).relative_spread > 0.02


def test_one_pair_of_processes_that_was_far_off_is_not_forgotten_for_another_that_agrees() -> None:
    """Measured: a small model's own steps took 4 ms in one process and 11 ms in the two after it."""
    found = promised(speedup(38.0), [speedup(20.4), speedup(37.6)])
    assert found.low < 24.3
    assert promised(speedup(38.0), [speedup(37.6)]).low > 30


def test_figures_of_another_policy_that_are_far_apart_widen_it_too() -> None:
    """Measured: the batch below the winner's was 55 times as fast in one pair of processes, and 34 times in another."""
    found = promised(speedup(70.7), [speedup(60.5)], [[speedup(55.3), speedup(34.2)], [speedup(2.0)]])
    assert found.low < 51.7
    assert promised(speedup(70.7), [speedup(60.5)], [[speedup(2.0)]]) == promised(speedup(70.7), [speedup(60.5)])
