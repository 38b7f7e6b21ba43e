"""What a step takes in the long run: one that is disturbed does not count, stalls that never end do."""

from __future__ import annotations

import math
import statistics

import pytest

from advisor.measure.typical import typical_interval, typical_seconds

STALLING = [0.012, 0.013, 2.9, 0.25, 0.011, 4.7, 0.4, 0.012]
"""Steps of two threads that wait for each other beside a program that keeps a core busy, as they were measured."""


def test_one_disturbed_step_among_many_does_not_move_it() -> None:
    assert typical_seconds([1.0] * 9 + [4.0]) == 1.0


def test_where_stalls_take_a_third_of_the_time_they_are_a_part_of_the_speed() -> None:
    assert typical_seconds(STALLING) == pytest.approx(statistics.fmean(STALLING))
    assert typical_seconds(STALLING) > 50 * min(STALLING)


def test_one_step_is_all_that_is_known() -> None:
    assert typical_seconds([3.0]) == 3.0
    assert typical_interval([3.0]) == (0.0, math.inf)


def test_the_interval_of_what_stalls_is_wide_and_around_the_mean() -> None:
    low, high = typical_interval(STALLING)
    assert 0 < low < typical_seconds(STALLING) < high
    assert high / low > 3


def test_the_interval_of_what_does_not_is_that_of_the_median() -> None:
    low, high = typical_interval([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0, 5.0])
    assert low <= 1.0 <= high < 1.1


def test_many_more_steps_that_stall_narrow_it() -> None:
    (low, high), (lower, higher) = typical_interval(STALLING), typical_interval(10 * STALLING)
    assert higher / lower < high / low
