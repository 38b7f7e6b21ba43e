"""What a candidate's own confirmation does to it."""

from __future__ import annotations

import msgspec
import pytest

from advisor.decide.candidate import Candidate
from advisor.decide.eligible import best_so_far, pace, why_not_eligible
from advisor.goal import Fidelity
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from tests.decide.examples import baseline, goal, measured

BF16 = use("precision", dtype="bf16")


def confirmed(value: float, low: float, high: float) -> Candidate:
    speedup = Speedup(value=value, low=low, high=high, rounds=8)
    return msgspec.structs.replace(measured(150, BF16, fidelity=Fidelity.PRECISION), confirmed=speedup)


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        ((1.01, 0.98, 1.04), "1.01 times as fast as the baseline in turn with it (±3.0%)"),
        ((0.7, 0.63, 0.77), "0.70 times as fast as the baseline in turn with it (±10%)"),
        ((1.02, 1.0, 1.04), "which is no gain beyond the noise"),
    ],
)
def test_a_confirmation_without_a_gain_is_a_reason_with_ratio_and_interval(
    speedup: tuple[float, float, float], said: str
) -> None:
    reason = why_not_eligible(confirmed(*speedup), goal())
    assert reason is not None
    assert said in reason


def test_a_confirmation_with_a_gain_beyond_its_interval_is_none() -> None:
    assert why_not_eligible(confirmed(1.3, 1.25, 1.35), goal()) is None
    assert why_not_eligible(measured(150, BF16), goal()) is None, "nor is it one not to be confirmed yet"


def test_what_was_ahead_in_every_turn_is_a_gain_however_far_turns_are_apart() -> None:
    """Trap: beside a busy core the baseline stalls, turns differ a hundredfold, and no interval excludes 1."""
    scattered = confirmed(9.0, 0.4, 200.0)
    assert scattered.confirmed is not None

    def with_turns(rounds: int, least: float) -> Candidate:
        return msgspec.structs.replace(
            scattered, confirmed=msgspec.structs.replace(scattered.confirmed, rounds=rounds, least=least)
        )

    assert why_not_eligible(with_turns(7, 1.6), goal()) is None
    reason = why_not_eligible(with_turns(7, 0.8), goal())
    assert reason is not None, "behind in one"
    assert "between 0.40 and 200" in reason
    assert why_not_eligible(with_turns(3, 1.6), goal()) is not None, "three may be chance"


def test_what_was_not_confirmed_sets_no_pace() -> None:
    beaten = confirmed(1.01, 0.98, 1.04)
    assert pace([baseline(100), beaten], goal(), gpu_count=1) == 100
    assert best_so_far([baseline(100), beaten], goal()) == baseline(100)


def test_what_was_left_unconfirmed_for_want_of_time_says_so() -> None:
    left = msgspec.structs.replace(measured(150, BF16), not_confirmed="the leader was not confirmed")
    assert why_not_eligible(left, goal()) == "the leader was not confirmed"
