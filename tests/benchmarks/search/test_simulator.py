"""The simulated problem: a new one for every seed, with a known optimum."""

from __future__ import annotations

import random
import statistics

import pytest

from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome
from benchmarks.search.simulated_space import Levels
from benchmarks.search.simulator import Simulator


@pytest.fixture(scope="module")
def levels() -> Levels:
    return Levels("small")


def test_the_two_sizes_are_as_documented(levels: Levels) -> None:
    assert (len(levels), levels.space.count) == (384, 384)
    large = Levels("large")
    assert (len(large), large.space.count) == (73_728, 73_728)


def test_every_combination_has_its_own_row(levels: Levels) -> None:
    rows = [levels.row(combination) for combination in levels.space.combinations()]
    assert sorted(rows) == list(range(384))


@pytest.mark.parametrize("seed", range(2))
def test_the_best_is_the_best_of_all(seed: int, levels: Levels) -> None:
    problem = Simulator(seed, "small", levels=levels)
    best = max(
        problem.rate(combination, batch)
        for combination in levels.space.combinations()
        for batch in range(1, problem.largest_batch + 1)
    )
    assert problem.best_rate == pytest.approx(best)


def test_equal_seeds_give_equal_problems_and_others_do_not(levels: Levels) -> None:
    rates = [Simulator(seed, "small", levels=levels).best_rate for seed in (0, 0, 1)]
    assert rates[0] == rates[1] != rates[2]


def test_some_combinations_crash_and_plain_training_does_not(levels: Levels) -> None:
    for seed in range(5):
        problem = Simulator(seed, "small", levels=levels)
        outcomes = [problem.outcome(combination, 1) for combination in levels.space.combinations()]
        assert 0 < outcomes.count(Outcome.CRASHED) <= 384 / 6
        assert problem.outcome(Combination(), 1) is not Outcome.CRASHED


def test_measured_times_have_two_percent_noise_and_forecasts_a_few_percent_error(levels: Levels) -> None:
    problem = Simulator(0, "small", levels=levels)
    runs = next(one for one in levels.space.combinations() if problem.outcome(one, 1) is Outcome.OK)
    generator = random.Random(0)
    rates = [problem.run(runs, 1, generator).rate or 0.0 for _ in range(500)]
    assert statistics.stdev(rates) / statistics.mean(rates) == pytest.approx(0.02, rel=0.2)
    errors = []
    for combination in levels.space.combinations():
        peak, forecast = problem.run(combination, 1, generator).peak_bytes, problem.forecast(combination)
        if peak is not None and forecast is not None:
            errors.append(forecast.predict(1) / peak - 1)
    assert statistics.stdev(errors) == pytest.approx(0.02, rel=0.3)
