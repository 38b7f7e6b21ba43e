"""DeepSpeed's procedure requests the same batches as its source, in the same order."""

from __future__ import annotations

import pytest

from benchmarks.search.deepspeed import deepspeed
from benchmarks.search.trials import SpentError, Trials

from .tables import CHECKPOINT
from .toy import Toy

SAVING = CHECKPOINT.label


def asked(toy: Toy, *, leave_out: bool = True, budget: int = 100) -> list[tuple[str, int]]:
    deepspeed(Trials(toy, budget, seed=0), 0, leave_out=leave_out)
    return toy.asked


def test_with_a_correct_calculation_the_largest_batch_takes_two_trials_and_its_neighbours_two_more() -> None:
    # The profile; the smallest; 1.05 times the calculated largest, which does not fit; the calculated largest; half of
    # it; and the batch a third of the way below it, which is slower.
    first = [("plain", batch) for batch in (1, 1, 21, 20, 10, 17)]
    # The next option begins at the largest batch of the one before; the limit is 64, and 1.05 times that is beyond it;
    # half of it; and one below.
    second = [(SAVING, batch) for batch in (20, 64, 32, 63)]
    sequence = asked(Toy())
    assert sequence[:6] == first
    assert sequence[6:9] == second[:3]
    assert len(sequence) == 10


def test_if_the_calculation_is_too_high_the_largest_batch_is_found_by_bisection() -> None:
    sequence = asked(Toy(promised=0.5, largest_batch=40, fixed_seconds=1.0))
    assert sequence[:10] == [("plain", batch) for batch in (1, 1, 40, 38, 20, 30, 25, 22, 21, 10)]


def test_bisection_ends_where_throughput_stops_growing() -> None:
    sequence = asked(Toy(promised=0.5, largest_batch=40, fixed_seconds=0.0, sample_seconds=1.0))
    # 20 samples are no faster than 1, so bisection ends with 20 as the largest.
    assert sequence[:6] == [("plain", batch) for batch in (1, 1, 40, 38, 20, 10)]


def test_an_option_with_a_smaller_calculated_batch_than_the_best_is_skipped_without_a_run() -> None:
    class Backwards(Toy):
        """Checkpointing uses more memory than plain training."""

        def _bytes(self, combination: object) -> float:
            return 2.0 if getattr(combination, "settings", ()) else 1.0

    assert SAVING not in {label for label, _ in asked(Backwards())}
    assert SAVING in {label for label, _ in asked(Backwards(), leave_out=False)}


def test_an_option_that_fails_at_the_best_ones_largest_batch_is_skipped_after_one_trial() -> None:
    sequence = asked(Toy(crashes=SAVING))
    assert [batch for label, batch in sequence if label == SAVING] == [20]


def test_it_ends_when_the_budget_is_spent() -> None:
    toy = Toy()
    with pytest.raises(SpentError):
        asked(toy, budget=4)
    assert len(toy.asked) == 4
