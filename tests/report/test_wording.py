"""Words for what short steps showed."""

from __future__ import annotations

from advisor.decide.candidate import Comparison
from advisor.measure.in_turn import Speedup
from advisor.report.wording import comparison_words


def comparison(speedup: Speedup | None) -> Comparison:
    return Comparison(
        speedup=speedup, micro_batch=4, at_batch=64, expected_samples_per_second=131.7, expected_error=0.06
    )


def test_what_was_measured_is_told_from_what_is_predicted() -> None:
    words = comparison_words(comparison(Speedup(value=1.234, low=1.2, high=1.27, rounds=4)))
    assert words == ("1.23 times plain training in turn at batch 4 (±2.8%); 132 samples/s predicted at its own batch")


def test_a_prediction_without_turns_has_its_error() -> None:
    assert comparison_words(comparison(None)) == "132 samples/s predicted at its own batch, ±6.0%"
