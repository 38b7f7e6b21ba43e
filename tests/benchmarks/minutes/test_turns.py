"""The ratio of two alternating trainings does not depend on the speed of the machine."""

from __future__ import annotations

import random

import pytest

from benchmarks.minutes.turns import Pacing, in_turn, median_with_interval

from .examples import FakeArm, Machine


def test_neighbouring_turns_make_one_ratio_so_drift_cancels() -> None:
    machine = Machine(*(1 / (1 + turn) for turn in range(40) for _ in range(2)))
    found = in_turn(FakeArm("one", 30, machine), FakeArm("other", 20, machine), Pacing(), clock=machine.clock)
    assert found.ratio == pytest.approx(1.5)
    assert (found.low, found.high) == pytest.approx((1.5, 1.5))


def test_the_order_alternates_between_rounds() -> None:
    machine = Machine()
    in_turn(FakeArm("one", 30, machine), FakeArm("other", 20, machine), Pacing(least_rounds=6), clock=machine.clock)
    assert [name for name, _ in machine.turns] == ["one", "other", "other", "one"] * 3


def test_turns_take_equally_long_and_at_least_one_step() -> None:
    machine = Machine()
    slow, quick = FakeArm("slow", 5, machine, batch=10), FakeArm("quick", 40, machine, batch=4)
    in_turn(slow, quick, Pacing(turn_seconds=0.4), clock=machine.clock)
    assert set(machine.turns) == {("slow", 1), ("quick", 20)}, "two seconds each"


def test_samples_are_compared_and_not_steps() -> None:
    machine = Machine()
    found = in_turn(FakeArm("one", 20, machine, batch=16), FakeArm("other", 20, machine, batch=4), Pacing())
    assert found.ratio == pytest.approx(1.0)
    assert found.samples_per_second == pytest.approx(20)


def test_it_stops_once_the_ratio_is_known_and_continues_otherwise() -> None:
    steady, noisy = Machine(), Machine(1.0, 1.1, 1.0, 0.9, 1.2)
    pacing = Pacing(least_rounds=8, most_rounds=30, seconds=1e9)
    rounds = [
        in_turn(FakeArm("one", 30, machine), FakeArm("other", 20, machine), pacing, clock=machine.clock).rounds
        for machine in (steady, noisy)
    ]
    assert rounds == [8, 30]


def test_after_the_time_limit_three_rounds_are_enough() -> None:
    machine = Machine()
    slow = Pacing(seconds=1.0)
    found = in_turn(FakeArm("one", 1, machine), FakeArm("other", 1, machine), slow, clock=machine.clock)
    assert found.rounds == 3


@pytest.mark.parametrize(
    ("count", "ends"), [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (12, (2, 9)), (20, (5, 14))]
)
def test_the_interval_matches_tables_of_the_sign_test(count: int, ends: tuple[int, int]) -> None:
    figures = list(range(count))
    random.Random(0).shuffle(figures)
    assert median_with_interval(figures) == ((count - 1) / 2, *ends)


def test_the_interval_covers_the_median_in_95_percent_of_cases_for_skewed_values_too() -> None:
    draw = random.Random(0)
    median = 2**0.5
    inside = 0
    for _ in range(2000):
        _, low, high = median_with_interval([1 / (1 - draw.random()) ** 0.5 for _ in range(12)])
        inside += low <= median <= high
    assert inside >= 0.94 * 2000
