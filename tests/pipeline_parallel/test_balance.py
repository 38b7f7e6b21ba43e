"""Blocks are cut into stages so that the slowest stage is as fast as it can be and every stage fits."""

from __future__ import annotations

import itertools
import random

import pytest

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline.balance import Cost, Costs, balanced, best_cut, even
from advisor.methods.pipeline.schedule_rules import SCHEDULES, in_flight, stages_of_rank, stages_per_rank, why_not


def slowest_and_squares(
    blocks: list[Cost], cuts: tuple[int, ...], before: Cost, after: Cost, limit: float | None, alive: list[int]
) -> tuple[float, float] | None:
    """Seconds of the slowest stage and the sum of squares; ``None`` if a stage does not fit."""
    times = []
    for stage, (start, stop) in enumerate(itertools.pairwise(cuts)):
        parts = blocks[start:stop] + [before] * (stage == 0) + [after] * (stage == len(cuts) - 2)
        if limit is not None and sum(part.bytes + alive[stage] * part.activation_bytes for part in parts) > limit:
            return None
        times.append(sum(part.seconds for part in parts))
    return max(times), sum(time * time for time in times)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_cut_that_fits_has_a_faster_slowest_stage_or_is_as_fast_and_more_even(seed: int) -> None:
    draw = random.Random(seed)
    cost = lambda: Cost(draw.uniform(1, 5), draw.uniform(0, 4), draw.uniform(0, 2))  # noqa: E731
    blocks, before, after = [cost() for _ in range(draw.randint(4, 9))], cost(), cost()
    stages = draw.randint(1, min(4, len(blocks)))
    alive = [draw.randint(1, 4) for _ in range(stages)]
    total = sum(block.bytes + 2 * block.activation_bytes for block in blocks)
    limit = None if seed % 4 == 0 else draw.uniform(0.8, 2.5) * total / stages
    every = [
        found
        for inner in itertools.combinations(range(1, len(blocks)), stages - 1)
        if (found := slowest_and_squares(blocks, (0, *inner, len(blocks)), before, after, limit, alive)) is not None
    ]
    arguments = {"before": before, "after": after, "limit": limit, "in_flight": alive}
    if not every:
        with pytest.raises(MethodRefusedError, match="must fit below"):
            balanced(blocks, stages, **arguments)
        return
    cuts = balanced(blocks, stages, **arguments)
    assert (cuts[0], cuts[-1]) == (0, len(blocks))
    found = slowest_and_squares(blocks, cuts, before, after, limit, alive)
    assert found == pytest.approx(min(every))


def test_a_head_that_is_slow_gets_fewer_blocks_beside_it_and_the_rest_stays_even() -> None:
    cuts = balanced([Cost(1.0)] * 12, 3, before=Cost(0.1), after=Cost(3.0))
    assert [stop - start for start, stop in itertools.pairwise(cuts)] == [5, 5, 2]


def test_the_fastest_cut_that_does_not_fit_gives_way_to_one_that_does() -> None:
    """The first blocks are quick but large, as with long sequences of few features."""
    blocks = (*[Cost(1.0, bytes=30.0, activation_bytes=20.0)] * 4, *[Cost(2.0, bytes=10.0)] * 4)
    costs = Costs(Cost(0.1), blocks, Cost(0.1))
    in_flight = [2, 1]
    by_seconds = best_cut(costs, 2, limit=None, in_flight=in_flight)
    assert by_seconds == (0, 5, 8), "290 bytes in the first stage"
    assert best_cut(costs, 2, limit=250.0, in_flight=in_flight) == (0, 3, 8), "210 and 90 bytes"


def test_where_no_cut_fits_the_fullest_stage_is_made_as_small_as_it_can_be() -> None:
    costs = Costs(Cost(0.1), (Cost(1.0, bytes=60.0), *[Cost(1.0, bytes=20.0)] * 3), Cost(0.1))
    assert best_cut(costs, 2, limit=None, in_flight=[1, 1]) == (0, 2, 4)
    assert best_cut(costs, 2, limit=50.0, in_flight=[1, 1]) == (0, 1, 4)


def test_without_measurements_every_stage_has_as_many_blocks_up_to_one() -> None:
    assert even(8, 4) == (0, 2, 4, 6, 8)
    assert even(7, 3) == (0, 2, 5, 7)
    with pytest.raises(MethodRefusedError, match="the model has 3 for 4 stages"):
        even(3, 4)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stage_is_on_one_rank(schedule: str, size: int) -> None:
    placed = [stage for rank in range(size) for stage in stages_of_rank(schedule, rank, size)]
    assert sorted(placed) == list(range(size * stages_per_rank(schedule)))


def test_the_zero_bubble_schedule_goes_down_the_ranks_and_up_again() -> None:
    assert [stages_of_rank("zero_bubble", rank, 4) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [stages_of_rank("interleaved", rank, 4) for rank in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_too_few_micro_batches_are_named_with_the_fix() -> None:
    assert why_not("gpipe", micro_batches=1, size=4) == ""  # naive model parallelism
    for schedule in ("1f1b", "interleaved", "zero_bubble"):
        assert "2" in why_not(schedule, micro_batches=2, size=4)
        assert why_not(schedule, micro_batches=8, size=4) == ""
    assert "use a multiple of 4" in why_not("interleaved", micro_batches=9, size=4)


def test_1f1b_keeps_the_activations_of_fewer_micro_batches_than_gpipe_the_later_the_stage() -> None:
    assert [in_flight("gpipe", stage, micro_batches=16, size=4) for stage in range(4)] == [16] * 4
    assert [in_flight("1f1b", stage, micro_batches=16, size=4) for stage in range(4)] == [4, 3, 2, 1]
