"""Which blocks run again from where, for the fixed patterns."""

from __future__ import annotations

import msgspec
import pytest

from advisor.methods.recompute.plan import Plan, as_plan, blocks_in, halves, root_segments, segments
from tests.methods.plans import runs


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


@pytest.mark.parametrize("plan", [(0, (1, 2), ((3,), 4)), halves(5), segments(5, 2)])
def test_a_plan_is_read_back_from_json(plan: Plan) -> None:
    assert as_plan(msgspec.json.decode(msgspec.json.encode(plan)), [range(5)]) == plan


@pytest.mark.parametrize(
    "value",
    [
        [0, [1, 2], 3],
        [0, [1, 2], 3, 4, 5],
        [0, [2, 1], 3, 4],
        [0, [1, 1], 2, 3, 4],
        [0, [], 1, 2, 3, 4],
        [0, 1, [2, 3], 4],
        [False, True, 2, 3, 4],
        [0, 1, 2, 3, "4"],
        0,
        {"0": 1},
        None,
    ],
    ids=str,
)
def test_what_is_no_plan_for_these_blocks_is_told_from_one(value: object) -> None:
    """Too few, too many, in another order, twice, an empty run, a run into the next stage, and no plan at all."""
    assert as_plan(value, [range(3), range(3, 5)]) is None
