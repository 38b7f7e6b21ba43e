"""Problems generated from seeds: some for development, others held out."""

from __future__ import annotations

import random

import pytest

from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome
from benchmarks.search.batches import Batches
from benchmarks.search.comparisons import comparisons, is_plain
from benchmarks.search.families import DEVELOPMENT, FAMILIES, HELD_BACK, SPENT
from benchmarks.search.generated import FIRST_HELD_BACK, HELD_BACK_NAME, Generated

SMALL = 25
"""A seed of a few hundred combinations."""


@pytest.fixture(scope="module")
def problem() -> Generated:
    return Generated(SMALL)


def test_every_family_is_either_for_development_or_held_out() -> None:
    assert {*DEVELOPMENT, *SPENT, *HELD_BACK} == FAMILIES.keys()
    assert not {*DEVELOPMENT, *SPENT} & {*HELD_BACK}


def test_development_problems_never_have_a_held_out_family() -> None:
    assert all(Generated(seed).family in DEVELOPMENT for seed in range(6))


def test_held_out_problems_have_every_family() -> None:
    """Only the family and the name of these are checked."""
    families = [*DEVELOPMENT, *SPENT, *HELD_BACK]
    found = Generated(FIRST_HELD_BACK)
    assert found.name == HELD_BACK_NAME
    assert found.family == families[FIRST_HELD_BACK % len(families)]


def test_equal_seeds_give_equal_problems(problem: Generated) -> None:
    again = Generated(SMALL)
    assert (again.best_rate, again.noise, again.space) == (problem.best_rate, problem.noise, problem.space)


def test_spaces_and_noise_have_the_documented_sizes() -> None:
    for seed in range(6):
        one = Generated(seed)
        assert one.space.count <= 100_000
        assert 0.01 <= one.noise <= 0.1
        assert one.space.recipes


def test_where_nothing_would_fit_there_is_memory_for_what_needs_least() -> None:
    usual, without_room = Generated(SMALL), Generated(741)
    assert without_room.limit_bytes > usual.limit_bytes
    assert without_room.best_rate > 0


def test_the_best_is_the_best_of_all(problem: Generated) -> None:
    best = max(
        problem.rate(combination, batch)
        for combination in problem.space.combinations()
        for batch in range(1, problem.largest_batch + 1)
    )
    assert problem.best_rate == pytest.approx(best)


def test_a_declared_conflict_is_never_the_best(problem: Generated) -> None:
    valid = {combination.label for combination in problem.space.combinations()}
    assert len(valid) == problem.space.count > 200
    ran = [one for one in problem.space.combinations() if problem.outcome(one, 1) is Outcome.OK]
    assert problem.best_rate >= max(problem.rate(one, 1) for one in ran)


def test_comparisons_cover_each_setting_alone_at_a_batch_where_plain_training_ran(problem: Generated) -> None:
    plain = problem.run(Combination(), 2, random.Random(0))
    assert is_plain(plain)
    found = list(comparisons(problem, Batches(problem), plain, 0))
    assert found
    assert all(len(one.combination.settings) == 1 and one.combination.gpu_count == 1 for one in found)
    assert {one.attributes["micro_batch"] for one in found} == {2}
    assert all(one.attributes["largest_batch"] >= 2 for one in found)
    for one in found:
        ratio = problem.rate(one.combination, 2) / problem.rate(Combination(), 2)
        assert one.rate / (plain.rate or 0.0) == pytest.approx(ratio, rel=6 * problem.noise)
