"""Which leader is worth one more measurement."""

from __future__ import annotations

import math

from advisor.decide.repeat import typical_value, worth_repeating
from advisor.search.propose.standing import Standing


def thought(score: float, deviation: float = 0.01) -> Standing:
    return Standing(mean=-math.log(score), deviation=deviation)


def test_of_two_figures_the_worse_stands_and_of_three_the_median() -> None:
    assert [typical_value(some) for some in ([3.0], [3.0, 1.0], [3.0, 1.0, 2.0])] == [3.0, 1.0, 2.0]


def test_nothing_is_repeated_where_the_leader_is_clear() -> None:
    assert worth_repeating({"one": thought(110), "other": thought(100)}, {"one": [110.0], "other": [100.0]}) is None


def test_a_figure_that_leads_against_what_is_thought_of_it_is_taken_again() -> None:
    standings = {"good": thought(110), "lucky": thought(100)}
    assert worth_repeating(standings, {"good": [110.0], "lucky": [112.0]}) == "lucky"
    assert worth_repeating(standings, {"good": [110.0], "lucky": [112.0, 99.0]}) is None


def test_of_two_that_may_be_the_better_one_the_less_known_is_repeated() -> None:
    figures = {"sure": [100.0], "doubtful": [99.0]}
    assert worth_repeating({"sure": thought(100, 0.01), "doubtful": thought(99, 0.04)}, figures) == "doubtful"
    assert worth_repeating({"sure": thought(100, 0.04), "doubtful": thought(99, 0.01)}, figures) == "sure"


def test_two_that_are_equally_good_as_far_as_is_known_are_left_alone() -> None:
    """Whichever is chosen, less than half a percent is lost."""
    assert (
        worth_repeating({"one": thought(100, 0.005), "other": thought(99.9, 0.005)}, {"one": [100], "other": [99.9]})
        is None
    )


def test_three_figures_of_each_are_enough() -> None:
    standings = {"one": thought(100, 0.1), "other": thought(99, 0.1)}
    assert worth_repeating(standings, {"one": [100.0, 99.0, 101.0], "other": [99.0]}) == "other"
    assert worth_repeating(standings, {"one": [100.0, 99.0, 101.0], "other": [99.0, 98.0, 99.0]}) is None


def test_one_alone_or_none_is_not_repeated() -> None:
    assert worth_repeating({"one": thought(100)}, {"one": [100.0]}) is None
    assert worth_repeating({}, {}) is None
