from __future__ import annotations

import pytest

from advisor.decide.noise import SMALLEST_NOISE, noise_between, repeat_noise

from .examples import measurement


def test_the_half_widths_of_two_intervals_add_in_squares() -> None:
    assert noise_between(measurement(10, spread=0.03), measurement(20, spread=0.04)) == pytest.approx(0.05)


def test_noise_has_a_floor_but_no_ceiling_wide_intervals_prove_nothing() -> None:
    assert noise_between(measurement(10, spread=0.0), measurement(20, spread=0.0)) == SMALLEST_NOISE
    assert noise_between(measurement(10, spread=0.6), measurement(20, spread=0.8)) == pytest.approx(1.0)


def test_what_repetitions_showed_is_a_floor() -> None:
    repeats = repeat_noise([[measurement(95), measurement(105), measurement(100)], [measurement(50)]])
    assert repeats == pytest.approx(0.05)
    assert noise_between(measurement(10, spread=0.0), measurement(20, spread=0.0), repeats) == pytest.approx(0.05)


def test_single_measurements_say_nothing_about_repetitions() -> None:
    assert repeat_noise([[measurement(95)], [measurement(105)]]) == 0.0
