from __future__ import annotations

import math

import pytest

from advisor.decide.drift import NOT_FINITE, drift_tolerance, loss_drift, within_tolerance
from advisor.problem.goal import Fidelity


def test_the_drift_is_the_largest_relative_difference_over_the_common_steps() -> None:
    assert loss_drift([4.0, 3.3, 1.0], [4.0, 3.0]) == pytest.approx(0.1)
    assert loss_drift([4.0, 3.0], [4.0, 3.0, 2.0]) == 0.0


def test_without_a_common_step_or_a_finite_reference_there_is_no_drift() -> None:
    assert loss_drift([], [4.0]) is None
    assert loss_drift([4.0], []) is None
    assert loss_drift([4.0], [math.nan]) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_beyond_every_tolerance(loss: float) -> None:
    drift = loss_drift([4.0, loss], [4.0, 3.0])
    assert drift == NOT_FINITE
    assert not any(within_tolerance(drift, fidelity) for fidelity in Fidelity)


def test_a_loss_near_zero_is_compared_with_the_size_of_the_others() -> None:
    assert loss_drift([4.0, 1e-9], [4.0, 1e-12]) == pytest.approx(0.0, abs=1e-6)
    assert loss_drift([0.0], [0.0]) == 0.0
    assert loss_drift([0.1], [0.0]) == NOT_FINITE


def test_the_tolerance_of_exact_and_rounding_is_tiny_and_two_percent_for_the_others() -> None:
    assert drift_tolerance(Fidelity.EXACT) < drift_tolerance(Fidelity.ROUNDING) <= 1e-3
    assert {drift_tolerance(one) for one in (Fidelity.PRECISION, Fidelity.LOSSY, Fidelity.MODEL)} == {0.02}
    assert within_tolerance(0.019, Fidelity.LOSSY)
    assert not within_tolerance(0.021, Fidelity.LOSSY)
    assert not within_tolerance(0.019, Fidelity.EXACT)
    assert within_tolerance(None, Fidelity.LOSSY)
