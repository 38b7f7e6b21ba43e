"""Two runs side by side: the same values whatever the noise of single batches."""

from __future__ import annotations

import pytest

from advisor.measure.fidelity import (
    NOT_FINITE,
    FidelityMeasurement,
    FidelityRecord,
    compared,
    diverged,
    noise_floor,
    smoothed,
)


def record(losses: list[float], distinct: int = 2) -> FidelityRecord:
    return FidelityRecord(losses=tuple(losses), distinct_batches=distinct)


def beside(losses: list[float], exact: list[float], distinct: int = 2) -> FidelityMeasurement:
    found = compared(record(losses, distinct), record(exact, distinct), reference="plain", micro_batch=2)
    assert found is not None
    return found


FALLING = [8.0, 6.0, 6.0, 4.0, 4.0, 2.0, 2.0, 2.0]


def test_a_run_beside_itself_differs_in_nothing() -> None:
    found = beside(FALLING, FALLING)
    assert (found.steps, found.loss_drift, found.excess, found.final_loss_ratio) == (8, 0.0, 0.0, 1.0)
    assert found.is_finite


def test_what_was_learned_is_from_the_first_round_of_batches_to_the_last_two() -> None:
    assert beside(FALLING, FALLING).learned == 7.0 - 2.5


def test_where_the_reference_run_began_is_its_largest_loss_of_the_first_round() -> None:
    assert beside(FALLING, [4.0, 5.0, 3.0, 2.0, 1.0], distinct=3).began == 5.0


def test_curves_are_smoothed_over_one_round_of_the_batches() -> None:
    assert smoothed([4.0, 2.0, 0.0, 2.0], 2) == [3.0, 1.0, 1.0]
    assert smoothed([4.0, 2.0], 5) == [3.0]
    # One batch is hard for the one run, the other for the other: over a round both are alike.
    assert beside([3.0, 5.0] * 4, [5.0, 3.0] * 4).loss_drift == 0.0


def test_only_the_steps_that_both_made_are_compared() -> None:
    found = beside([*FALLING, 100.0], FALLING)
    assert (found.steps, found.loss_drift) == (8, 0.0)
    assert compared(record([1.0, 1.0]), record(FALLING), reference="plain", micro_batch=2) is None


def test_the_drift_is_relative_to_the_loss_or_to_what_was_learned() -> None:
    assert beside([4.0, 4.0, 4.4, 4.4], [4.0] * 4).loss_drift == pytest.approx(0.1)
    # A loss that has fallen to nothing has no relative error: 0.1 of the 8 that were learned.
    found = beside([8.0, 8.0, 0.0, 0.0, 0.1, 0.1], [8.0, 8.0, 0.0, 0.0, 0.0, 0.0])
    assert found.loss_drift == pytest.approx(0.1 / 8.0)
    assert found.final_loss_ratio == NOT_FINITE


def test_losses_may_be_negative() -> None:
    found = beside([-1.0, -1.0, -1.9, -1.9], [-1.0, -1.0, -2.0, -2.0])
    assert found.excess == pytest.approx(0.1)
    assert found.loss_drift == pytest.approx(0.05)


def test_a_run_whose_loss_is_lost_is_beyond_every_number() -> None:
    found = diverged(record(FALLING), reference="plain", micro_batch=2)
    assert not found.is_finite
    assert found.excess > 1e5
    assert found.learned == 4.5


def test_what_chance_does_as_a_rule_is_told_from_every_step_that_the_two_runs_no_longer_share() -> None:
    exact = FidelityRecord(losses=(4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0), distinct_batches=2)
    chance = FidelityRecord(losses=(4.0, 4.0, 3.4, 2.6, 2.4, 1.6, 1.4, 0.6), distinct_batches=2)
    noise = noise_floor(chance, exact)
    assert noise is not None
    assert noise.final_loss_gap == pytest.approx(0.0), "they end alike"
    assert noise.final_loss_error == pytest.approx(0.4 / 2), "the mean of four steps that are 0.4 apart"
    assert noise.final_loss_noise == noise.final_loss_error
    itself = noise_floor(exact, exact)
    assert itself is not None
    assert itself.final_loss_noise == 0
    assert noise_floor(FidelityRecord(losses=(4.0, 3.0), distinct_batches=2), exact) is None, "too few steps"
