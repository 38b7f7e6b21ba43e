"""What a micro-batch counts, on one process and on several."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.errors import WorkloadError
from advisor.training.batch.micro_batch_weights import require_one_process, weighed
from advisor.training.processes.world import World


class Pretended(World):
    """A world whose other ranks hold given numbers of targets."""

    def __init__(self, *others: int) -> None:
        super().__init__(rank=0, size=1 + len(others))
        self._others = others
        self._asked = 0

    def total(self, value: float) -> float:
        self._asked += 1
        return value + sum(self._others if self._asked == 1 else [other == 0 for other in self._others])


def by_target(piece: int) -> tuple[float, bool]:
    return float(piece), True


def by_sample(piece: int) -> tuple[float, bool]:
    return float(piece), False


def test_one_process_weighs_by_the_share_of_targets_and_skips_what_has_none() -> None:
    assert weighed([1, 0, 3], by_target, World()) == [(1, 0.25), (3, 0.75)]


def test_the_mean_over_ranks_of_what_they_weigh_is_one() -> None:
    """Three ranks hold 4, 10 and 2 of 16 targets; the loss of the first counts 4/16 once three are averaged."""
    assert weighed([1, 3], by_target, Pretended(10, 2)) == [(1, 3 / 16), (3, 9 / 16)]


def test_ranks_with_equal_samples_need_not_be_asked() -> None:
    class Unreachable(World):
        def total(self, value: float) -> float:
            raise AssertionError("no communication is needed")

    assert weighed([2, 2], by_sample, Unreachable(0, 4)) == [(2, 0.5), (2, 0.5)]


def test_every_rank_makes_as_many_passes_the_idle_ones_first() -> None:
    """The last pass averages gradients, so it must be one that counts."""
    assert weighed([2, 0, 0], by_target, Pretended(2)) == [(2, 0.0), (2, 0.0), (2, 1.0)]


@pytest.mark.parametrize(("pieces", "others", "without"), [([0, 0], (5,), 1), ([1], (0, 0), 2)])
def test_a_rank_without_any_target_is_an_error_on_every_rank(pieces: list[Any], others: Any, without: int) -> None:
    with pytest.raises(WorkloadError, match=f"but {without} of {1 + len(others)} have none"):
        weighed(pieces, by_target, Pretended(*others))


def test_no_target_anywhere_stays_visible_as_it_is_in_plain_training() -> None:
    assert weighed([0, 0], by_target, World()) == [(0, 0.5), (0, 0.5)]


def test_a_piece_without_targets_counts_as_one_target_where_the_loss_divides_by_at_least_one() -> None:
    assert weighed([0, 2], by_target, World(), at_least=1.0) == [(0, 0.5), (2, 1.0)]
    assert weighed([0], by_target, Pretended(3), at_least=1.0) == [(0, 2 / 3)]


def test_without_any_target_pieces_count_by_their_samples() -> None:
    """What is left of the loss is a penalty, or a mean over samples."""
    sizes = iter([3, 1])
    assert weighed([0, 0], by_target, World(), samples=lambda _: next(sizes)) == [(0, 0.75), (0, 0.25)]


def test_a_sum_over_a_number_of_the_batch_is_for_one_process() -> None:
    """Trap: with two processes, each of whose batches brought its own count, the gradient was twice as long."""
    require_one_process(World())
    with pytest.raises(WorkloadError, match="divided by a number in the batch"):
        require_one_process(World(rank=0, size=2))
