"""Which point of the frontier is picked, and what is said when none is within the limit."""

from __future__ import annotations

import re

import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.errors import PreferenceNotMetError, TrialError
from advisor.goal import Preference
from advisor.methods.setting import use

from .costs import cheapest, decide, timed

BF16 = use("precision", dtype="bf16")

ONE = timed(2.0, role=Role.BASELINE)  # 0.0020 USD
TWO = timed(1.2, BF16, gpu_count=2)  # 0.0024 USD
FOUR = timed(1.0, BF16, gpu_count=4)  # 0.0040 USD


def picked(preference: Preference, *candidates: Candidate) -> Candidate:
    answer = decide(candidates or (ONE, TWO, FOUR), cheapest(preference))
    assert answer.frontier is not None
    assert answer.frontier.points[answer.frontier.pick].policy == answer.winner.policy
    return answer.winner


def test_at_most_so_long_picks_the_cheapest_of_those() -> None:
    assert picked(Preference(max_latency_seconds=1.5)) == TWO
    assert picked(Preference(max_latency_seconds=1.2)) == TWO
    assert picked(Preference(max_latency_seconds=1.1)) == FOUR
    assert picked(Preference(max_latency_seconds=60)) == ONE


def test_at_most_so_much_picks_the_fastest_of_those() -> None:
    assert picked(Preference(max_cost_usd=0.003)) == TWO
    assert picked(Preference(max_cost_usd=0.0021)) == ONE
    assert picked(Preference(max_cost_usd=1)) == FOUR


def test_at_most_so_much_is_for_the_whole_run_when_there_is_one() -> None:
    assert picked(Preference(max_cost_usd=3, iterations=1000)) == TWO
    assert picked(Preference(max_cost_usd=3.99, iterations=1000)) == TWO
    assert picked(Preference(max_cost_usd=4.01, iterations=1000)) == FOUR


def test_a_deadline_picks_the_cheapest_that_is_done_by_then() -> None:
    assert picked(Preference(deadline_seconds=2000, iterations=1000)) == ONE
    assert picked(Preference(deadline_seconds=1999, iterations=1000)) == TWO
    assert picked(Preference(deadline_seconds=1100, iterations=1000)) == FOUR


def test_the_knee_is_where_cost_times_latency_is_least() -> None:
    assert picked(Preference()) == TWO  # 0.0040, 0.00288, 0.0040
    assert picked(Preference(iterations=1000)) == TWO


def test_twice_the_devices_are_worth_it_from_a_factor_of_1_41_on() -> None:
    assert picked(Preference(), ONE, timed(2 / 1.40, BF16, gpu_count=2)) == ONE
    faster = timed(2 / 1.43, BF16, gpu_count=2)
    assert picked(Preference(), ONE, faster) == faster


def test_the_knee_of_one_point_is_that_point() -> None:
    assert picked(Preference(), TWO) == TWO


def test_the_knee_does_not_move_when_a_far_point_is_added() -> None:
    far = timed(0.99, BF16, gpu_count=256 // 8)
    assert picked(Preference(), ONE, TWO, FOUR, far) == TWO


def test_the_limit_that_is_advised_is_met() -> None:
    odd = timed(1.23421, role=Role.BASELINE)  # rounded to the nearest, none of the figures would be enough
    for limit, figure, followed in (
        (Preference(max_latency_seconds=0.5), "1.24 s", Preference(max_latency_seconds=1.24)),
        (Preference(max_cost_usd=0.001), "$0.00124", Preference(max_cost_usd=0.00124)),
        (Preference(max_cost_usd=1, iterations=1000), "$1.24", Preference(max_cost_usd=1.24, iterations=1000)),
        (Preference(deadline_seconds=1, iterations=100), "2m04s", Preference(deadline_seconds=124, iterations=100)),
        (Preference(deadline_seconds=1, iterations=3000), "1h02m", Preference(deadline_seconds=3720, iterations=3000)),
    ):
        with pytest.raises(PreferenceNotMetError, match=re.escape(figure)):
            decide([odd], cheapest(limit))
        assert picked(followed, odd) == odd


@pytest.mark.parametrize(
    ("preference", "message"),
    [
        (
            Preference(max_latency_seconds=0.5),
            "Some policy must take at most 500 ms per iteration (--max-latency), but the fastest takes 1.00 s: "
            "precision bf16 on 4 devices. Raise --max-latency to that, or allow more --gpus.",
        ),
        (
            Preference(max_cost_usd=0.001),
            "Some policy must cost at most $0.00100 for an iteration (--max-cost), but the cheapest costs $0.00200: "
            "plain on 1 device. Raise --max-cost to that, or allow more methods.",
        ),
        (
            Preference(max_cost_usd=1, iterations=1000),
            "Some policy must cost at most $1.00 for 1,000 iterations (--max-cost), but the cheapest costs $2.00: "
            "plain on 1 device. Raise --max-cost to that, or allow more methods.",
        ),
        (
            Preference(deadline_seconds=600, iterations=1000),
            "Some policy must take at most 10m00s for 1,000 iterations (--deadline), but the fastest takes 16m40s: "
            "precision bf16 on 4 devices. Raise --deadline to that, or allow more --gpus.",
        ),
    ],
)
def test_a_limit_that_no_point_meets_says_the_best_there_is(preference: Preference, message: str) -> None:
    with pytest.raises(PreferenceNotMetError) as raised:
        decide([ONE, TWO, FOUR], cheapest(preference))
    assert str(raised.value) == message
    assert isinstance(raised.value, TrialError)
