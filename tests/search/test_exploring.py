"""What is compared because of what it may teach: pairs of settings about which nothing is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from advisor.search.propose.expectation import Expectations, Observation
from advisor.search.propose.exploring import explorers, worth_of_learning
from advisor.search.space.factors import Choice, Factors, Floats
from advisor.search.space.space import Combination, ResolvedSpace

from .synthetic import SETTINGS, space

SPACE = space("precision", "checkpoint", "attention", "small_adam", "swap", fractions=(1.0,))
PLAIN = Combination()


def pairs(*combinations: Combination) -> set[tuple[str, ...]]:
    return {
        tuple(one.label for one in pair) for each in combinations for pair in itertools.combinations(each.settings, 2)
    }


def found(
    known: list[Combination],
    *,
    cost: float = 0.05,
    of: ResolvedSpace = SPACE,
    most: int = 4,
    least: float = 1e-4,
    allowed: Callable[[Combination], bool] = lambda _: True,
) -> list[Combination]:
    """Explorers after some combinations, each setting of which costs something alone."""
    seen = [Observation(choice=Choice(one, 1.0), logs=(cost * len(one.settings),)) for one in known]
    factors = Factors(of)
    expectations = Expectations(factors, seen, (1.0,))
    return explorers(of, factors, expectations, PLAIN, random.Random(1), most=most, least=least, allowed=allowed)


ALONE = [PLAIN, *(Combination((one,)) for axis in SPACE.axes for one in axis.settings)]


def test_a_few_combinations_hold_many_pairs_that_were_never_measured() -> None:
    some = found(ALONE)
    assert len(some) == 4
    assert len(pairs(*some)) > 20, "of 48 in all, with four comparisons"
    assert all(len(one.settings) >= 4 for one in some)


def test_each_holds_pairs_that_those_before_do_not() -> None:
    one, *others = found(ALONE)
    before = pairs(one)
    for other in others:
        assert len(pairs(other) - before) > len(pairs(other)) / 3
        before |= pairs(other)


def test_nothing_is_explored_once_every_pair_was_measured_and_showed_nothing() -> None:
    every = [*ALONE, *(one for one in SPACE.combinations() if len(one.settings) == 2)]
    assert found(every) == []


def test_what_costs_more_than_any_interaction_may_bring_is_not_worth_it() -> None:
    assert found(ALONE, cost=0.05, least=5e-4)
    assert found(ALONE, cost=1.5, least=5e-4) == []


def test_only_what_is_valid_is_explored() -> None:
    first, second = SETTINGS["precision"][0], SETTINGS["small_adam"][0]
    torn = space(
        "precision", "checkpoint", "attention", "small_adam", "swap", fractions=(1.0,), conflicts=((first, second),)
    )
    some = found(ALONE, cost=0.0, of=torn, most=20, least=0.0, allowed=lambda one: len(one.settings) < 5)
    assert len(some) > 4
    assert len({one.label for one in some}) == len(some), "each once"
    assert not any(first in one.settings and second in one.settings for one in some)
    assert PLAIN not in some
    assert all(len(one.settings) < 5 for one in some), "as the caller allows"


@pytest.mark.parametrize("methods", [(), ("small_adam",)])
def test_a_space_without_pairs_has_nothing_to_explore(methods: tuple[str, ...]) -> None:
    bare = space(*methods, fractions=(1.0,)) if methods else msgspec.structs.replace(SPACE, axes=())
    assert found([PLAIN], of=bare) == []


def worth(
    *points: Combination,
    known: list[Combination],
    failed: tuple[Combination, ...] = (),
    under_way: tuple[Combination, ...] = (),
) -> Floats:
    """What trials of some points may lead to, after combinations each setting of which costs something alone."""
    seen = [Observation(choice=Choice(one, 1.0), logs=(0.05 * len(one.settings),)) for one in known]
    seen += [Observation(choice=Choice(one, 1.0), failed=True) for one in failed]
    factors = Factors(SPACE)
    leader, *levels = factors.levels(Choice(one, 1.0) for one in (PLAIN, *points))
    pending = factors.levels(Choice(one, 1.0) for one in under_way)
    return worth_of_learning(factors, Expectations(factors, seen, (1.0,)), leader, np.array(levels), pending)


PAIR = Combination((SETTINGS["attention"][0], SETTINGS["swap"][0]))
OTHER_PAIR = Combination((SETTINGS["checkpoint"][0], SETTINGS["precision"][0]))
BOTH = Combination(tuple(sorted((*PAIR.settings, *OTHER_PAIR.settings), key=lambda one: one.name)))


def test_a_trial_is_worth_the_sum_of_its_pairs_and_one_without_a_pair_nothing() -> None:
    single, pair, other, both = worth(ALONE[1], PAIR, OTHER_PAIR, BOTH, known=ALONE)
    assert single == 0.0
    assert pair > 0
    assert both > 2 * (pair + other), "six pairs instead of one each"


def test_what_was_measured_is_not_worth_learning_again() -> None:
    before, after = (worth(PAIR, BOTH, known=[*ALONE, *more]) for more in ([], [PAIR]))
    assert after[0] < before[0] / 10
    assert before[1] > after[1] > before[1] / 2, "its five other pairs are left"


def test_what_will_probably_fail_teaches_nothing() -> None:
    failed = tuple(Combination((*PAIR.settings, one)) for one in SETTINGS["precision"])
    assert worth(PAIR, known=ALONE, failed=failed) < worth(PAIR, known=ALONE) / 2


def test_what_a_pending_trial_will_tell_is_not_worth_another() -> None:
    pair, both = worth(PAIR, BOTH, known=ALONE, under_way=(PAIR,))
    assert pair == 0.0
    assert both == pytest.approx((worth(BOTH, known=ALONE) - worth(PAIR, known=ALONE)).item(), rel=0.1)


def test_no_points_are_worth_nothing() -> None:
    factors = Factors(SPACE)
    expectations = Expectations(factors, [Observation(choice=Choice(PLAIN, 1.0), logs=(0.0,))], (1.0,))
    leader, none = factors.levels([Choice(PLAIN, 1.0)])[0], factors.levels([])
    assert worth_of_learning(factors, expectations, leader, none, none).shape == (0,)
