"""What a prediction says is the largest of a few lines, and the batch that fits is where they meet a limit."""

from __future__ import annotations

import math

import pytest

from advisor.predict.prediction import Affine, Category, MemoryPrediction, Moment

OPTIMIZER = Moment(
    phase="optimizer", live=Affine(1000.0, 0.0), parts={Category.PARAMETERS: Affine(600.0, 0.0)}, operator="addcdiv"
)
BACKWARD = Moment(
    phase="backward",
    live=Affine(400.0, 50.0),
    parts={Category.PARAMETERS: Affine(400.0, 0.0), Category.ACTIVATIONS: Affine(0.0, 50.0)},
)
LATER = Moment(phase="backward", live=Affine(100.0, 60.0), parts={Category.ACTIVATIONS: Affine(100.0, 60.0)})


def prediction(*moments: Moment) -> MemoryPrediction:
    return MemoryPrediction(moments=moments, activations=Affine(0.0, 40.0), traced_at=(2, 4))


def test_the_peak_moves_from_phase_to_phase_as_the_batch_grows() -> None:
    memory = prediction(OPTIMIZER, BACKWARD, LATER)
    assert [memory.peak(batch) for batch in (1, 12, 13, 30, 40)] == [1000, 1000, 1050, 1900, 2500]
    assert [memory.peak_moment(batch).phase for batch in (1, 12, 13)] == ["optimizer", "optimizer", "backward"]
    assert memory.phase_peaks(40) == {"optimizer": 1000, "backward": 2500}


def test_what_lives_at_the_peak_is_said_by_category() -> None:
    assert prediction(OPTIMIZER, BACKWARD).breakdown(20) == {Category.PARAMETERS: 400, Category.ACTIVATIONS: 1000}


@pytest.mark.parametrize("limit", [1000, 1049, 1050, 1900, 2500, 10**9])
def test_the_largest_batch_is_the_last_whose_peak_fits(limit: int) -> None:
    memory = prediction(OPTIMIZER, BACKWARD, LATER)
    largest = math.floor(memory.largest_batch(limit))
    assert memory.peak(largest) <= limit < memory.peak(largest + 1)


def test_where_not_even_one_sample_fits_the_largest_batch_is_below_one() -> None:
    assert prediction(OPTIMIZER, BACKWARD).largest_batch(999) < 1
    assert prediction(BACKWARD).largest_batch(449) < 1


def test_a_batch_that_takes_nothing_has_no_bound() -> None:
    assert prediction(OPTIMIZER).largest_batch(1000) == math.inf


def test_a_phase_that_the_step_has_not_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        prediction(OPTIMIZER).peak_moment(1, "forward")
