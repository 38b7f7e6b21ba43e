"""Which blocks run again from where, for the fixed patterns."""

from __future__ import annotations

import pytest

from advisor.methods.plans import blocks_in, halves, root_segments, runs, segments


def test_segments_of_a_size_and_what_is_left() -> None:
    assert segments(7, 3) == ((0, 1, 2), (3, 4, 5), (6,))


def test_as_many_segments_as_the_root_of_the_number() -> None:
    assert root_segments(9) == ((0, 1, 2), (3, 4, 5), (6, 7, 8))
    sizes = [len(blocks_in(segment)) for segment in root_segments(1000)]
    assert len(sizes) == 32
    assert set(sizes) == {31, 32}


def test_halves_of_halves_down_to_single_blocks() -> None:
    assert halves(4) == (((0,), (1,)), ((2,), (3,)))
    assert halves(3) == ((0,), ((1,), (2,)))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_every_block_is_there_once_and_in_order(count: int) -> None:
    for plan in (segments(count, 3), root_segments(count), halves(count)):
        assert blocks_in(plan) == list(range(count))


def test_a_block_runs_once_more_for_every_plan_around_it() -> None:
    assert runs((0, (1, 2), ((3,), 4))) == [1, 2, 2, 3, 2]
    assert set(runs(halves(1024))) == {11}  # At most: a region that runs again stops before its second half.
