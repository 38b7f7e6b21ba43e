"""What a search says it can hope for: nothing where there is only noise, much where something large is likely."""

from __future__ import annotations

import math
import random

import pytest

from advisor.methods.setting import use
from advisor.search.propose.proposal import GainLeft
from advisor.search.space.space import ResolvedSpace
from advisor.search.study.sampler import Proposer

from .synthetic import Instance, recipe, space


def proposer(of: ResolvedSpace, seed: int = 0, maximize: tuple[bool, ...] = (True,)) -> Proposer:
    return Proposer(of, storage=None, study_name="momadvise", maximize=maximize, seed=seed)


def trials_until_noise(seed: int, effects: float, most: int = 60) -> tuple[int, Proposer]:
    """Trials until four times in a row hardly anything is expected, where effects are so large."""
    instance, generator = Instance(seed), random.Random(seed)
    of = {label: generator.gauss(0, effects) for label in instance.effects}
    one = proposer(instance.space(), seed)
    in_a_row = 0
    for number in range(1, most + 1):
        proposal = one.ask()
        assert proposal is not None
        seconds = math.exp(sum(of[setting.label] for setting in proposal.settings) + generator.gauss(0, 0.02))
        one.tell(proposal, 1 / seconds, noise=0.02)
        left = one.gain_left()
        in_a_row = in_a_row + 1 if left is not None and left.is_negligible else 0
        if in_a_row == 4:
            return number, one
    return most + 1, one


@pytest.mark.parametrize("seed", range(4))
def test_where_there_is_only_noise_it_is_over_after_some_forty_of_384(seed: int) -> None:
    number, one = trials_until_noise(seed, effects=0.0)
    assert number <= 50
    left = one.gain_left()
    assert left is not None
    assert left.noise == 0.02
    assert left.measured == number


def test_what_it_ends_with_is_nearly_always_near_the_best() -> None:
    near = 0
    for seed in range(20):
        instance = Instance(seed)
        one = proposer(instance.space(), seed)
        best, best_seconds, in_a_row = 0.0, math.inf, 0
        while in_a_row < 4:
            proposal = one.ask()
            assert proposal is not None
            rate, seconds = instance.measured(proposal.combination), instance.seconds(proposal.combination)
            one.tell(proposal, rate, {"outcome": float(rate is None)}, noise=0.02)
            if rate is not None and seconds is not None and rate > best:
                best, best_seconds = rate, seconds
            left = one.gain_left()
            in_a_row = in_a_row + 1 if left is not None and left.is_negligible else 0
        near += best_seconds <= 1.05 * instance.least
    assert near >= 18


def test_it_is_not_over_while_a_large_gain_is_likely() -> None:
    """Every method that was tried helped by a fifth, and they were never tried together."""
    alone = [recipe(f"{number}", setting) for number, axis in enumerate(space().axes) for setting in axis.settings]
    one = proposer(space(fractions=(1.0,), recipes=tuple(alone)))
    for _ in range(len(alone) + 1):
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, 120.0 if proposal.settings else 100.0, noise=0.02)
    left = one.gain_left()
    assert left is not None
    assert left.expected > 0.2
    assert not left.is_negligible


def test_nothing_is_said_before_the_recipes_had_their_turn() -> None:
    recipes = tuple(recipe(f"{gib}", use("swap", gib=gib)) for gib in (1, 4))
    one = proposer(space("precision", "swap", "checkpoint", recipes=recipes))
    said = []
    for _ in range(12):
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, 100.0)
        said.append(one.gain_left() is not None)
    assert said == [False] * 7 + [True] * 5


def test_nothing_is_said_while_nothing_may_win() -> None:
    one = proposer(space("precision", "swap", "checkpoint"))
    for _ in range(10):
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, 100.0, {"memory": 0.1})
    assert one.gain_left() is None


def test_when_everything_was_tried_nothing_is_left() -> None:
    one = proposer(space("precision", "small_adam", fractions=(1.0,)))
    while (proposal := one.ask()) is not None:
        one.tell(proposal, 100.0 + len(proposal.settings), noise=0.01)
    assert one.gain_left() == GainLeft(expected=0.0, noise=0.01, measured=8)


def test_with_two_objectives_an_improvement_of_either_counts() -> None:
    one = proposer(space("precision", "small_adam", "checkpoint", fractions=(1.0,)), maximize=(False, False))
    for _ in range(9):
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, (1.0, 1.0 - 0.2 * len(proposal.settings)), noise=0.01)
    left = one.gain_left()
    assert left is not None
    assert left.expected > 0
