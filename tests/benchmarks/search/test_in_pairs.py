"""Pairs in turn on all devices: both fit, they share noise, and the leaders are told apart before an answer."""

from __future__ import annotations

import pytest

from advisor.methods.setting import MethodSetting
from advisor.search.space.space import Combination
from benchmarks.search import in_pairs
from benchmarks.search.batches import Batches
from benchmarks.search.pairs import Pairs
from benchmarks.search.results import COMPARISON
from benchmarks.search.simulator import Simulator
from benchmarks.search.strategies import STRATEGIES, search
from benchmarks.search.trials import Trials

NAME = "ours, model, compared in pairs"


def using(gpu_count: int = 1, **levels: str) -> Combination:
    settings = (MethodSetting(name=name, parameters={"level": level}) for name, level in sorted(levels.items()))
    return Combination(tuple(settings), gpu_count)


ONE = using(8, compile="default", precision="bf16", sharding="ddp")
OTHER = using(8, flash_attention="on", precision="bf16", sharding="ddp")


@pytest.fixture
def problem() -> Simulator:
    return Simulator(7, "small")


def own(problem: Simulator, batches: Batches) -> tuple[tuple[Combination, int], tuple[Combination, int]]:
    return (ONE, batches.largest(ONE)), (OTHER, batches.largest(OTHER))


def test_two_trainings_are_compared_at_batches_that_leave_room_for_the_resident_bytes_of_both(
    problem: Simulator,
) -> None:
    batches = Batches(problem)
    one, other = own(problem, batches)
    room = Pairs(problem, batches, 0).room(one, other)
    assert room is not None
    assert room[0] < one[1]
    assert room[1] < other[1]
    assert batches.peak(ONE, room[0]) + batches.peak(OTHER, 0) <= problem.limit_bytes
    assert Pairs(problem, batches, 0).room(one, (using(precision="bf16"), 8)) is None, "not on as many devices"
    problem.limit_bytes = round(1.1 * batches.peak(ONE, 1))
    assert Pairs(problem, batches, 0).room(one, other) is None


def test_equal_comparisons_give_equal_ratios_and_repeated_ones_scatter_around_the_truth(problem: Simulator) -> None:
    batches = Batches(problem)
    pairs = Pairs(problem, batches, 0)
    room = pairs.room(*own(problem, batches))
    assert room is not None
    one, other = (ONE, room[0]), (OTHER, room[1])
    found = [pairs.ratio(one, other, number) for number in range(30)]
    assert all(ratio is not None for ratio in found)
    assert pairs.ratio(one, other, 4) == found[4]
    assert pairs.ratio(other, one, 4) == pytest.approx(1 / (found[4] or 1))
    truth = problem.rate(*one) / problem.rate(*other)
    assert sum(ratio or 0 for ratio in found) / 30 == pytest.approx(truth, rel=0.01)
    assert max(abs((ratio or 0) / truth - 1) for ratio in found) > 0.5 * pairs.noise


def test_a_pair_that_memory_does_not_hold_after_all_has_no_ratio(problem: Simulator) -> None:
    pairs = Pairs(problem, batches := Batches(problem), 0)
    one, other = own(problem, batches)
    assert pairs.ratio(one, other, 0) is None


def test_comparisons_before_an_answer_are_counted_and_are_not_trials() -> None:
    alone, ended = (Trials(Simulator(3, "small"), 12, 0) for _ in range(2))
    search(STRATEGIES["ours, model, compared"], alone, 0)
    search(STRATEGIES[NAME], ended, 0)
    assert 11.8 < ended.spent + COMPARISON * ended.comparisons <= 13, "each is a fifth of a trial"
    assert alone.comparisons < ended.comparisons <= in_pairs.MOST
    assert (ended.compared_until(0.0) or 0) > 0
    assert all(0 < worth <= 1 for worth, _ in list(ended.answers())[1:])
