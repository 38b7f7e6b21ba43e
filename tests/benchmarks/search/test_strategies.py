"""Each name selects the strategy that it describes."""

from __future__ import annotations

import random

from advisor.search.propose.proposal import SamplerName
from advisor.search.space.space import Combination
from benchmarks.search.problem import Trial
from benchmarks.search.simulator import Simulator
from benchmarks.search.strategies import STRATEGIES, search
from benchmarks.search.trials import Trials


class Watched(Simulator):
    """Records the requests it receives."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "small")
        self.asked: list[str] = []

    def run(self, combination: Combination, batch: int, generator: random.Random) -> Trial:
        self.asked.append(combination.label)
        return super().run(combination, batch, generator)


def asked_by(strategy: str) -> list[str]:
    problem = Watched(0)
    search(STRATEGIES[strategy], Trials(problem, 30, 0), 0)
    return problem.asked


def test_each_sampler_searches_in_its_own_way() -> None:
    asked = [asked_by(f"ours, {name.value}") for name in SamplerName]
    assert all(one != other for number, one in enumerate(asked) for other in asked[:number])
    seeds = len({label for label, *others in zip(*asked, strict=False) if set(others) == {label}})
    assert seeds >= 3, "plain training and the recipes come first, whoever samples"


def test_a_strategy_is_deterministic() -> None:
    assert asked_by("ours, model") == asked_by("ours, model")
