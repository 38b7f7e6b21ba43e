from __future__ import annotations

import math

import pytest

from advisor.decide.drift import NOT_FINITE, drift_tolerance, loss_drift, within_tolerance
from advisor.decide.guard import observed_class
from advisor.goal import Fidelity
from advisor.measure.fidelity import FidelityMeasurement


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


def test_the_tolerance_grows_with_what_the_class_admits() -> None:
    tolerances = [drift_tolerance(one) for one in Fidelity]
    assert tolerances == sorted(tolerances)
    assert drift_tolerance(Fidelity.EXACT) < 1e-3
    assert within_tolerance(0.019, Fidelity.PRECISION)
    assert not within_tolerance(0.019, Fidelity.ROUNDING)
    assert within_tolerance(None, Fidelity.LOSSY)


def test_where_plain_training_drifts_from_itself_first_losses_that_drift_as_far_say_nothing() -> None:
    assert not within_tolerance(0.25, Fidelity.PRECISION, chance=0.1)
    assert within_tolerance(0.25, Fidelity.PRECISION, chance=0.2)
    assert not within_tolerance(0.25, Fidelity.EXACT, chance=0.2), "the same bits drift by no chance"
    assert not within_tolerance(NOT_FINITE, Fidelity.PRECISION, chance=0.2)
    assert within_tolerance(0.015, Fidelity.PRECISION, chance=0.001), "no less is tolerated than without"


@pytest.mark.parametrize("fidelity", [one for one in Fidelity if one is not Fidelity.MODEL])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_the_first_losses_allow_the_drift_that_the_comparison_allows(fidelity: Fidelity, factor: float) -> None:
    """Without time for the comparison they decide alone: what it would allow, they must not refuse."""
    drift = factor * drift_tolerance(fidelity)
    compared = FidelityMeasurement(
        steps=30,
        loss_drift=drift,
        final_loss=2.0,
        exact_final_loss=2.0,
        learned=1.0,
        reference="plain",
        micro_batch=2,
    )
    assert within_tolerance(drift, fidelity) is (observed_class(fidelity, compared) is fidelity) is (factor < 1)
