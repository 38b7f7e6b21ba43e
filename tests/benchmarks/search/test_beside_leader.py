"""The leader is compared with combinations that differ in one method, and these comparisons are not trials."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from advisor.methods.setting import MethodSetting
from advisor.search.propose.standing import Standing
from advisor.search.space.space import Combination
from benchmarks.search import beside_leader
from benchmarks.search.batches import Batches
from benchmarks.search.beside_leader import BesideLeader
from benchmarks.search.simulator import Simulator
from benchmarks.search.strategies import STRATEGIES, search
from benchmarks.search.trials import Trials


def using(gpu_count: int = 1, **levels: str) -> Combination:
    settings = (MethodSetting(name=name, parameters={"level": level}) for name, level in sorted(levels.items()))
    return Combination(tuple(settings), gpu_count)


LEADER = using(8, compile="default", flash_attention="on", precision="bf16", sharding="ddp")
ON_ONE = using(compile="default", flash_attention="on", precision="bf16")


class Learned:
    """A proposer that rates one combination best and records what it learns."""

    def __init__(self) -> None:
        self.figures: list[tuple[Combination, float, int]] = []

    def standings(self) -> dict[str, Standing]:
        return {LEADER.label: Standing(mean=0.0, deviation=0.01), Combination().label: Standing(mean=1.0, deviation=1)}

    def learn(self, combination: Combination, rate: float, attributes: Mapping[str, int], *, noise: float) -> None:
        self.figures.append((combination, rate, attributes["micro_batch"]))


def compared(problem: Simulator, trials: Trials, *, first: int = 1) -> Learned:
    """What the proposer learns after a trial of the leader."""
    proposer, batches = Learned(), Batches(problem)
    beside = BesideLeader(trials, batches, proposer, 0)  # type: ignore[arg-type]
    for _ in range(first):
        beside.after(trials.run(LEADER, batches.largest(LEADER)))
    return proposer


@pytest.fixture
def problem() -> Simulator:
    return Simulator(7, "small", noise=0.001)


def test_each_change_of_one_method_is_compared_once_on_one_device(problem: Simulator) -> None:
    trials = Trials(problem, 20, 0)
    found = compared(problem, trials, first=8).figures
    others = [one for one, _, _ in found if one != ON_ONE]
    assert len(others) == len({one.label for one in others}) > 4
    assert {one.label for one in others} <= {one.label for one in problem.space.neighbours(ON_ONE)}
    assert trials.comparisons >= len(others)
    assert trials.spent == 8


def test_both_fit_together_and_the_ratio_is_true_up_to_noise(problem: Simulator) -> None:
    batches = Batches(problem)
    found = compared(problem, Trials(problem, 20, 0), first=8).figures
    leaders = {batch: rate for one, rate, batch in found if one == ON_ONE}
    others = [(one, rate, batch) for one, rate, batch in found if one != ON_ONE]
    assert others
    for one, rate, batch in others:
        assert batches.peak(one, batch) + batches.peak(ON_ONE, batch) <= 1.05 * problem.limit_bytes
        ratio = problem.rate(one, batch) / problem.rate(ON_ONE, batch)
        assert rate / leaders[batch] == pytest.approx(ratio, rel=0.01)


def test_nothing_is_compared_if_memory_does_not_hold_both(problem: Simulator) -> None:
    trials = Trials(problem, 20, 0)
    problem.limit_bytes = round(1.2 * problem.run(LEADER, 1, trials._random).peak_bytes)  # type: ignore[operator]
    assert not compared(problem, trials, first=8).figures
    assert trials.comparisons == 0


def test_nothing_is_compared_while_recipes_lead(problem: Simulator) -> None:
    assert not compared(problem, Trials(problem, 20, 0), first=beside_leader._FROM - 1).figures


def test_a_search_makes_more_comparisons_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, beside = (Trials(Simulator(3, "small"), 10, 0) for _ in range(2))
    search(STRATEGIES["ours, model, compared"], alone, 0)
    search(STRATEGIES["ours, model, compared beside the leader"], beside, 0)
    assert alone.comparisons < beside.comparisons <= 60
    monkeypatch.setattr(beside_leader, "_MOST", alone.comparisons + 2)
    fewer = Trials(Simulator(3, "small"), 10, 0)
    search(STRATEGIES["ours, model, compared beside the leader"], fewer, 0)
    assert fewer.comparisons == alone.comparisons + 2
