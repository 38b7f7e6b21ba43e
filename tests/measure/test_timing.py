from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from advisor.measure.measurement import StopReason
from advisor.measure.timing import Timing, TimingPlan, time_steps
from advisor.measure.typical import median_interval

_T = TypeVar("_T")


class Steps:
    """Steps that take given times on a clock of their own; the last time repeats."""

    def __init__(self, durations: Iterable[float]) -> None:
        self.durations = list(durations)
        self.now = 100.0
        self.count = 0

    def clock(self) -> float:
        return self.now

    def step(self) -> None:
        self.now += self.durations[min(self.count, len(self.durations) - 1)]
        self.count += 1


def plan(**changes: float | None) -> TimingPlan:
    fields = {
        "warmup_steps": 1,
        "min_timed_steps": 3,
        "max_timed_steps": 50,
        "target_spread": 0.02,
        "measure_seconds": 1000.0,
        "outpaced_above_seconds": None,
    }
    return TimingPlan(**{**fields, **changes})  # type: ignore[arg-type]


def run(durations: Iterable[float], before_timed: Callable[[], None] | None = None, **changes: float | None) -> Timing:
    steps = Steps(durations)
    return time_steps(steps.step, plan(**changes), steps.clock, before_timed=before_timed)


def test_even_steps_stop_as_soon_as_there_are_enough() -> None:
    timing = run([1.0])
    assert timing.stop_reason is StopReason.STEADY
    assert len(timing.step_seconds) == 3
    assert timing.typical_seconds == pytest.approx(1.0)


def test_slow_first_steps_are_not_timed() -> None:
    timing = run([9.0, 5.0, 3.0, 1.0])
    assert max(timing.step_seconds) == pytest.approx(1.0)
    assert timing.warmup_seconds[:3] == pytest.approx((9.0, 5.0, 3.0))


def test_warm_up_ends_even_when_steps_never_settle() -> None:
    timing = run([2.0 * 0.9**i for i in range(200)], max_timed_steps=5)
    assert len(timing.warmup_seconds) == 10


def test_warm_up_leaves_half_of_the_time_for_measuring() -> None:
    timing = run([5.9 * 0.93**i for i in range(200)], measure_seconds=60.0)
    assert 30.0 <= sum(timing.warmup_seconds) < 36.0
    assert timing.step_seconds


def test_dear_steps_get_no_more_warm_up_than_asked() -> None:
    assert len(run([30.0], measure_seconds=60.0).warmup_seconds) == 1


def test_steps_that_need_no_warm_up_get_none() -> None:
    timing = run([1.0], warmup_steps=0)
    assert timing.warmup_seconds == ()
    assert len(timing.step_seconds) == 3


def test_noisy_steps_take_more_until_sure() -> None:
    noise = random.Random(1)
    timing = run([1.0] * 2 + [noise.gauss(1.0, 0.02) for _ in range(200)])
    assert timing.stop_reason is StopReason.STEADY
    assert 3 < len(timing.step_seconds) < 50
    assert (timing.high_seconds - timing.low_seconds) / 2 <= 0.02 * timing.typical_seconds


def test_short_steps_are_repeated_until_they_add_up() -> None:
    """The trap: three steps of 30 ms agree with each other while the clocks still rise."""
    timing = run([0.03], min_timed_seconds=1.0, max_timed_steps=5)
    assert timing.stop_reason is StopReason.STEADY
    assert sum(timing.step_seconds) == pytest.approx(1.0, abs=0.03)


def test_the_shortest_steps_end_after_a_thousand() -> None:
    timing = run([1e-5], min_timed_seconds=1.0)
    assert timing.stop_reason is StopReason.STEADY
    assert len(timing.step_seconds) == 1000
    uneven = run([1e-5, 1e-5, *([1e-5, 3e-5] * 1000)], min_timed_seconds=1.0)
    assert uneven.stop_reason is StopReason.BUDGET
    assert len(uneven.step_seconds) == 1000


def test_the_time_ends_short_steps_too() -> None:
    timing = run([0.03], min_timed_seconds=1.0, measure_seconds=0.3)
    assert timing.stop_reason is StopReason.BUDGET
    assert sum(timing.step_seconds) < 0.4


def test_a_clearly_slower_candidate_need_not_add_up() -> None:
    timing = run([0.03], min_timed_seconds=1.0, outpaced_above_seconds=0.01)
    assert timing.stop_reason is StopReason.OUTPACED
    assert len(timing.step_seconds) == 3


def test_one_slow_step_does_not_move_the_answer() -> None:
    timing = run([1.0] * 4 + [7.0] + [1.0] * 100)
    assert timing.typical_seconds == pytest.approx(1.0)
    assert timing.high_seconds == pytest.approx(1.0)


def test_the_most_steps_end_it() -> None:
    timing = run([1.0, 1.0, *([1.0, 2.0] * 100)], max_timed_steps=8)
    assert timing.stop_reason is StopReason.BUDGET
    assert len(timing.step_seconds) == 8


def test_the_time_ends_it_but_the_fewest_steps_are_taken() -> None:
    timing = run([10.0, 10.0, *([10.0, 20.0] * 100)], measure_seconds=5.0)
    assert timing.stop_reason is StopReason.BUDGET
    assert len(timing.step_seconds) == 3


def test_a_clearly_slower_candidate_is_left_after_three_steps() -> None:
    noise = random.Random(1)
    timing = run([noise.gauss(2.0, 0.05) for _ in range(100)], target_spread=0.001, outpaced_above_seconds=1.0)
    assert timing.stop_reason is StopReason.OUTPACED
    assert len(timing.step_seconds) == 3


def test_a_candidate_that_may_still_be_as_fast_is_measured_on() -> None:
    timing = run([1.0, 1.0, *([0.9, 1.3] * 100)], outpaced_above_seconds=1.0, max_timed_steps=20)
    assert timing.stop_reason is StopReason.BUDGET


def test_the_meters_start_after_the_warm_up() -> None:
    steps = Steps([5.0, 3.0, 1.0])
    started_at = []
    timing = time_steps(steps.step, plan(), steps.clock, before_timed=lambda: started_at.append(steps.now))
    assert started_at == [100.0 + sum(timing.warmup_seconds)]


@pytest.mark.parametrize("count", [3, 5, 7, 9, 15, 40])
def test_the_interval_covers_the_median_in_95_of_100_cases(count: int) -> None:
    noise = random.Random(count)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([noise.gauss(1.0, 0.05) for _ in range(count)])
        hits += low <= 1.0 <= high
    assert hits / 2000 >= 0.935


def test_the_interval_holds_the_median_itself() -> None:
    noise = random.Random(3)
    for count in range(2, 60):
        values = [noise.expovariate(1.0) for _ in range(count)]
        low, high = median_interval(values)
        assert 0.0 <= low <= statistics.median(values) <= high


def test_ranks_follow_one_clock() -> None:
    """The trap: a rank that stops a step before the others leaves them waiting for it."""
    told: list[object] = []

    def first(value: _T, kind: Any = Any) -> _T:
        told.append(value)
        return value

    # The first rank never settles; the other has steps as even as can be, and yet makes as many.
    unsettled = [9.0, 5.0, 3.0] + [1.0 + 0.5 * (index % 3) for index in range(100)]
    leader, follower = Steps(unsettled), Steps([1.0])
    time_steps(leader.step, plan(max_timed_steps=20), leader.clock, agree=first)
    decisions = iter(told)

    def other(value: _T, kind: Any = Any) -> _T:
        return next(decisions)  # type: ignore[return-value]

    timing = time_steps(follower.step, plan(max_timed_steps=20), follower.clock, agree=other)
    assert follower.count == leader.count > 20
    assert timing.typical_seconds == pytest.approx(1.0)
    assert timing.stop_reason is StopReason.BUDGET
