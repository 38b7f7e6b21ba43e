"""The answer promises what its confirmation found, as surely as the search and the confirmation agree."""

from __future__ import annotations

import pytest

from advisor.decide.promise import is_certain, promised, shown, together
from advisor.measure.in_turn import Speedup


def speedup(value: float, spread: float = 0.02, rounds: int = 6) -> Speedup:
    return Speedup(value=value, low=value / (1 + spread), high=value * (1 + spread), rounds=rounds)


@pytest.mark.parametrize("searched", [None, 1.2, 1.5, 2.5])
def test_the_search_does_not_move_the_value(searched: float | None) -> None:
    """It found a winner, and winners are more often lucky than not."""
    found = promised([speedup(1.5)], [] if searched is None else [speedup(searched)])
    assert found.value == 1.5
    assert found.rounds == 6


def test_the_interval_widens_with_the_distance_between_search_and_confirmation() -> None:
    spreads = [promised([speedup(1.5)], [speedup(searched)]).relative_spread for searched in (1.5, 1.6, 1.8, 2.5)]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 2 * spreads[0]


def test_a_search_that_was_too_low_is_as_far_off_as_one_that_was_too_high() -> None:
    lower, higher = (promised([speedup(1.5)], [speedup(one)]) for one in (1.5 / 1.2, 1.5 * 1.2))
    assert lower.relative_spread == pytest.approx(higher.relative_spread)


def test_agreement_makes_it_surer_than_no_second_figure() -> None:
    assert promised([speedup(1.5)], [speedup(1.5)]).relative_spread < promised([speedup(1.5)], []).relative_spread


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.2])
@pytest.mark.parametrize("searched", [[], [speedup(1.5)], [speedup(1.3), speedup(1.4)]])
def test_it_is_never_narrower_than_the_confirmations_own(spread: float, searched: list[Speedup]) -> None:
    confirmed = speedup(1.5, spread)
    found = promised([confirmed], searched)
    assert found.low < confirmed.low
    assert found.high > confirmed.high


def test_two_processes_that_agree_perfectly_may_still_differ_from_a_third() -> None:
    assert promised([speedup(1.5, 0.0)], [speedup(1.5, 0.0)]).relative_spread > 0.02


def test_one_pair_of_processes_that_was_far_off_is_not_forgotten_for_another_that_agrees() -> None:
    """Measured: a small model's own steps took 4 ms in one process and 11 ms in the two after it."""
    found = promised([speedup(38.0)], [speedup(20.4), speedup(37.6)])
    assert found.low < 24.3
    assert promised([speedup(38.0)], [speedup(37.6)]).low > 30


def test_figures_of_another_policy_that_are_far_apart_widen_it_too() -> None:
    """Measured: the batch below the winner's was 55 times as fast in one pair of processes, and 34 times in another."""
    found = promised([speedup(70.7)], [speedup(60.5)], [[speedup(55.3), speedup(34.2)], [speedup(2.0)]])
    assert found.low < 51.7
    assert promised([speedup(70.7)], [speedup(60.5)], [[speedup(2.0)]]) == promised([speedup(70.7)], [speedup(60.5)])


def test_a_baseline_whose_own_speed_scatters_widens_it() -> None:
    """Measured: the unmodified file took its memory from the system in every step, at 0.18 to 0.31 s a step."""
    steady = promised([speedup(3.57)], [speedup(3.5)], (), [80.0, 81.0, 79.5])
    scattered = promised([speedup(3.57)], [speedup(3.5)], (), [88.8, 72.1, 86.9, 62.0])
    assert steady == promised([speedup(3.57)], [speedup(3.5)])
    assert scattered.low < 3.0 < steady.low


def test_speedups_that_agree_although_the_baseline_drifts_narrow_it_again() -> None:
    """What slows both down cancels."""
    drifting = [100.0, 80.0, 120.0, 90.0]
    alone = promised([speedup(2.0)], [], (), drifting)
    agreeing = promised([speedup(2.0)], [speedup(2.01), speedup(1.99)], [[speedup(1.5)] * 4], drifting)
    assert agreeing.relative_spread < 0.8 * alone.relative_spread


def test_what_is_shown_is_surer_than_what_is_promised_of_the_next_processes() -> None:
    figures = ([speedup(1.3)], [speedup(1.25)], (), [100.0, 90.0, 110.0])
    assert shown(*figures).value == promised(*figures).value
    assert shown(*figures).relative_spread < promised(*figures).relative_spread


def test_a_baseline_that_stalls_is_not_counted_twice() -> None:
    """Its turns differ within one pair of processes as they do between pairs."""
    stalling = speedup(9.0, spread=3.0)
    rates = [3.0, 40.0, 8.0, 95.0]
    assert promised([stalling], [], baseline=rates).high < promised([speedup(9.0)], [], baseline=rates).high * 4
    assert promised([stalling], [], baseline=rates).low < stalling.low


def test_more_pairs_of_processes_that_agree_narrow_it() -> None:
    """Their mean is promised, and the next pair differs from it by less than from any one of them."""
    drifting = [100.0, 80.0, 120.0, 90.0]
    spreads = [
        promised([speedup(one) for one in pairs], [], (), drifting).relative_spread
        for pairs in ([2.0], [2.0, 2.05], [2.0, 2.05, 1.95])
    ]
    assert spreads[2] < 0.7 * spreads[0]
    assert spreads == sorted(spreads, reverse=True)


def test_more_pairs_of_processes_that_disagree_widen_it() -> None:
    assert promised([speedup(2.0), speedup(1.2)], []).low < 1.0 < promised([speedup(2.0)], []).low


def test_pairs_of_processes_are_averaged_as_ratios() -> None:
    mean = together([speedup(2.0, 0.04, rounds=5), speedup(0.5, 0.04, rounds=3)])
    assert mean.value == pytest.approx(1.0)
    assert mean.rounds == 8
    assert mean.standard_error == pytest.approx(speedup(1.0, 0.04).standard_error / 2**0.5)
    assert together([speedup(1.5)]) == speedup(1.5)


@pytest.mark.parametrize(
    ("found", "promise", "certain"),
    [
        (speedup(2.0, 0.05), speedup(2.0, 0.1), True),
        (speedup(2.0, 0.2), speedup(2.0, 0.4), False),  # a gain, but who knows by how much
        (speedup(1.02, 0.05), speedup(1.02, 0.1), False),  # perhaps no gain
        (speedup(0.97, 0.05), speedup(0.97, 0.5), True),  # hardly one: the next winner gets the time
    ],
)
def test_what_is_certain_is_not_measured_in_more_processes(found: Speedup, promise: Speedup, certain: bool) -> None:
    assert is_certain(found, promise) is certain
