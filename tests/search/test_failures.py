"""Which settings are suspected after some combinations failed, and which pairs are named in the answer."""

from __future__ import annotations

import itertools

import numpy as np

from advisor.methods.setting import MethodSetting, use
from advisor.search.propose.failures import Failures
from advisor.search.space.factors import Choice, Factors
from advisor.search.space.space import Combination

from .synthetic import Instance

SPACE = Instance(0).space()
FACTORS = Factors(SPACE)
A, B, C, D = use("first", level=0), use("second", level=0), use("third", level=0), use("fourth", level=0)


def failures(failed: list[tuple[MethodSetting, ...]], well: list[tuple[MethodSetting, ...]]) -> Failures:
    rows = [FACTORS.levels(Choice(Combination(settings), 1.0) for settings in some) for some in (failed, well)]
    return Failures(FACTORS, *rows)


def probability(of: Failures, *settings: MethodSetting) -> float:
    return float(of.probability(FACTORS.levels([Choice(Combination(settings), 1.0)]))[0])


def test_without_failures_nothing_is_suspected() -> None:
    known = failures([], [(), (A,)])
    assert probability(known, A, B) == 0
    assert known.pairs == {}


def test_what_went_well_with_others_is_cleared_and_the_rest_is_suspected() -> None:
    known = failures([(A, B, C)], [(), (C, D)])
    assert probability(known, C, D) == probability(known, D) == 0
    assert 0.2 < probability(known, A) < probability(known, A, B) < probability(known, A, B, C) < 1


def test_where_each_went_well_alone_the_pair_is_suspected() -> None:
    known = failures([(A, B)], [(A,), (B,)])
    assert probability(known, A, C) == probability(known, B, D) == 0
    assert probability(known, A, B, C) > 0.3


def test_each_further_failure_is_blamed_more_on_what_they_have_in_common() -> None:
    well = [(A, C), (B, D)]
    chances = [
        probability(failures([(A, B), (A, B, C), (A, B, D), (A, B, C, D)][:count], well), A, B, use("fifth", level=0))
        for count in (1, 2, 3, 4)
    ]
    assert all(earlier < later for earlier, later in itertools.pairwise(chances))
    assert chances[-1] > 0.9


def test_a_share_of_the_batch_and_plain_training_are_no_suspects() -> None:
    known = failures([()], [])
    assert probability(known) == 0


def test_a_pair_in_two_failures_and_no_success_is_named() -> None:
    known = failures([(A, B, C), (A, B, D)], [(), (A, C), (B, D), (C, D)])
    assert known.pairs == {("first(level=0)", "second(level=0)"): 2}


def test_one_failure_or_one_success_names_no_pair() -> None:
    assert failures([(A, B, C)], [(A,), (B,), (C,)]).pairs == {}
    assert failures([(A, B, C), (A, B, D)], [(A, B), (C,), (D,)]).pairs == {}


def test_a_setting_that_never_went_well_explains_its_failures_alone() -> None:
    assert failures([(A, B, C), (A, B, D)], [(B, C), (D,)]).pairs == {}


def test_a_pair_in_more_failures_explains_those_of_a_pair_in_fewer() -> None:
    failed = [(A, B, C), (A, B, C, D), (A, B, D)]
    assert failures(failed, [(A, C), (A, D), (B, D), (C, D), (B, use("fifth", level=0))]).pairs == {
        ("first(level=0)", "second(level=0)"): 3
    }


def test_the_same_combination_at_two_shares_of_the_batch_fails_once() -> None:
    row = FACTORS.levels([Choice(Combination((A, B)), 1.0)])
    known = Failures(FACTORS, np.concatenate([row, row]), FACTORS.levels([Choice(Combination((A,)), 1.0)]))
    assert known.pairs == {}
