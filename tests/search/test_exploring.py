"""What is compared because of what it may teach: pairs of settings about which nothing is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from advisor.search.propose.expectation import Expectations, Observation
from advisor.search.propose.exploring import explorers
from advisor.search.space.factors import Choice, Factors
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
