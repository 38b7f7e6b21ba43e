from __future__ import annotations

import pytest

from advisor.phase import Phase
from advisor.predict.step_work import Kind
from benchmarks.calibration import TimePrediction
from tests.predict.rates import group, rates, work_of

PREDICTION = TimePrediction(
    work=work_of(group(flops=(0, 100)), group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=100)), rates=rates()
)
"""``10 + batch`` seconds."""


def test_without_a_trial_the_roofline_speaks() -> None:
    assert PREDICTION.at(30).predicted_seconds == pytest.approx(40)
    assert PREDICTION.at(30).calibrated_at == ()


def test_one_measured_batch_gives_a_factor_for_all_batches_and_phases() -> None:
    calibrated = PREDICTION.calibrated({10: 30.0})
    assert calibrated.at(10).predicted_seconds == pytest.approx(30)
    step = calibrated.at(40)
    assert step.predicted_seconds == pytest.approx(75)
    assert [one.predicted_seconds for one in step.phases] == pytest.approx([60, 15])
    assert step.share(Phase.OPTIMIZER) == pytest.approx(PREDICTION.at(40).share(Phase.OPTIMIZER))
    assert sum(step.phases[0].seconds_by_bound.values()) == pytest.approx(60)
    assert step.calibrated_at == (10,)


def test_two_measured_batches_give_a_line() -> None:
    calibrated = PREDICTION.calibrated({10: 30.0}).calibrated({20: 55.0})
    assert calibrated.at(10).predicted_seconds == pytest.approx(30)
    assert calibrated.at(20).predicted_seconds == pytest.approx(55)
    assert calibrated.at(40).predicted_seconds == pytest.approx(105)
    assert calibrated.at(40).calibrated_at == (10, 20)


def test_points_on_a_line_give_that_line_however_many() -> None:
    calibrated = PREDICTION.calibrated({10: 25.0, 20: 45.0, 40: 85.0})
    assert calibrated.at(100).predicted_seconds == pytest.approx(205)


def test_a_line_that_falls_is_noise() -> None:
    calibrated = PREDICTION.calibrated({10: 60.0, 20: 54.0})  # 3 and 1.8 times the roofline
    assert calibrated.at(40).predicted_seconds == pytest.approx(2.4 * 50)


def test_no_batch_takes_less_than_no_time() -> None:
    calibrated = PREDICTION.calibrated({10: 10.0, 20: 45.0})  # the line is below zero at a batch of 5
    assert calibrated.at(5).predicted_seconds == pytest.approx(15 * (10 / 20 + 45 / 30) / 2)
