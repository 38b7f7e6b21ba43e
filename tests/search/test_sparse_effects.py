"""Large effects that are no sum: of two settings together, of one from some batch on, of one combination."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from advisor.methods.setting import MethodSetting, use
from advisor.search.propose.cost_model import Batches, CostModel
from advisor.search.space.factors import Choice, Factors
from advisor.search.space.space import Combination

from .synthetic import space

SPACE = space(fractions=(1.0,))
FACTORS = Factors(SPACE)
EVERY = list(SPACE.combinations())
BF16, ADAM, SWAP = use("precision", dtype="bf16"), use("small_adam"), use("swap", gib=1)
LABELS = [setting.label for axis in SPACE.axes for setting in axis.settings]
EFFECTS = dict(zip(LABELS, random.Random(2).choices((-0.1, 0.02, 0.1), k=len(LABELS)), strict=True))


def using(*settings: MethodSetting) -> Combination:
    return Combination(tuple(sorted(settings, key=lambda one: one.name)))


def cost(combination: Combination, pair: tuple[MethodSetting, ...] = (), together: float = 0.0) -> float:
    """The log of it: a sum, and what a pair does together."""
    found = sum(EFFECTS[one.label] for one in combination.settings)
    return found + (together if pair and has(combination, *pair) else 0.0)


def has(combination: Combination, *settings: MethodSetting) -> bool:
    return all(one in combination.settings for one in settings)


def model(
    known: list[Combination], logs: list[float], batches: Batches | None = None, noise: float = 0.02
) -> CostModel:
    levels = FACTORS.levels(Choice(one, 1.0) for one in known)
    return CostModel(FACTORS, levels, np.array(logs), np.full(len(known), noise), batches)


def mean(one: CostModel, *combinations: Combination) -> list[float]:
    return one.estimate(FACTORS.levels(Choice(other, 1.0) for other in combinations)).mean.tolist()


def number(setting: MethodSetting) -> int:
    return LABELS.index(setting.label)


@pytest.mark.parametrize("together", [-0.5, 0.5])
def test_two_settings_that_act_together_are_found_from_a_few_measurements_and_expected_elsewhere(
    together: float,
) -> None:
    generator = random.Random(1)
    without = [one for one in EVERY if not has(one, BF16, ADAM)]
    both = [one for one in EVERY if has(one, BF16, ADAM)]
    known = generator.sample(without, 24)
    seen, elsewhere = generator.sample(both, 4), generator.choice(both)
    pair = (BF16, ADAM)
    noise = [generator.gauss(0, 0.01) for _ in range(28)]
    logs = [cost(one, pair, together) + off for one, off in zip([*known, *seen], noise, strict=True)]
    one = model([*known, *seen], logs)
    assert mean(one, elsewhere) == pytest.approx([cost(elsewhere, pair, together)], abs=0.1)
    alike = using(*(setting for setting in elsewhere.settings if setting != ADAM))
    assert mean(one, alike) == pytest.approx([cost(alike)], abs=0.1), "not without the other"


def test_where_everything_is_a_sum_none_is_found() -> None:
    generator = random.Random(3)
    known = generator.sample(EVERY, 30)
    one = model(known, [cost(each) + generator.gauss(0, 0.02) for each in known])
    assert not any(posterior.large.any() for posterior in one._posteriors)


def test_what_measurements_cannot_tell_apart_shares_the_suspicion_until_one_does() -> None:
    """Of three settings in one odd measurement, any pair may be the cause; a second one shows which."""
    generator = random.Random(4)
    few = [one for one in EVERY if sum(has(one, setting) for setting in (BF16, ADAM, SWAP)) < 2]
    known = generator.sample(few, 24)
    odd = using(BF16, ADAM, SWAP)
    logs = [cost(one) for one in known]
    pairs = [using(*pair) for pair in itertools.combinations((BF16, ADAM, SWAP), 2)]
    suspected = mean(model([*known, odd], [*logs, cost(odd) - 0.6]), *pairs)
    gains = [cost(pair) - found for pair, found in zip(pairs, suspected, strict=True)]
    assert all(0.05 < gain < 0.45 for gain in gains), "each a part of it"
    told = mean(model([*known, odd, pairs[0]], [*logs, cost(odd) - 0.6, cost(pairs[0]) - 0.6]), *pairs)
    gains = [cost(pair) - found for pair, found in zip(pairs, told, strict=True)]
    assert gains[0] == pytest.approx(0.6, abs=0.1)
    assert all(abs(gain) < 0.15 for gain in gains[1:])


def test_a_setting_that_pays_from_a_batch_on_is_expected_to_where_the_batch_is_larger() -> None:
    generator = random.Random(5)
    known = [(one, size) for one in generator.sample(EVERY, 20) for size in (6.0, 12.0, 24.0, 48.0)]

    def of(one: Combination, size: float) -> float:
        return cost(one) - (0.5 if BF16 in one.settings and size >= 16 else 0.0)

    batches = Batches(np.log([size for _, size in known]), np.full(len(known), math.log(48.0)))
    one = model([each for each, _ in known], [of(*each) for each in known], batches)
    untried = using(BF16, SWAP)
    assert untried not in [each for each, _ in known]
    found, _ = one.joint(FACTORS.levels([Choice(untried, 1.0)] * 2), np.log(np.array([12.0, 48.0])))
    assert found.tolist() == pytest.approx([of(untried, 12.0), of(untried, 48.0)], abs=0.1)


def test_a_combination_that_is_odd_for_a_reason_of_its_own_is_believed_and_its_neighbours_are_not_changed() -> None:
    generator = random.Random(6)
    odd = using(BF16, ADAM, SWAP, use("chunked", chunks=4))
    others = [one for one in EVERY if one != odd]
    known = generator.sample(others, 40) + [one for one in SPACE.neighbours(odd) if one in others]
    one = model([*known, odd], [*(cost(each) for each in known), cost(odd) - 0.5])
    assert mean(one, odd) == pytest.approx([cost(odd) - 0.5], abs=0.05)
    near = next(SPACE.neighbours(odd))
    assert mean(one, near) == pytest.approx([cost(near)], abs=0.05)


def test_a_pair_that_was_never_measured_is_suspected_more_than_one_that_was_and_showed_nothing() -> None:
    generator = random.Random(7)
    known = generator.sample([one for one in EVERY if not has(one, BF16, ADAM)], 30)
    shown = using(BF16, SWAP)
    one = model([*known, shown], [cost(each) for each in [*known, shown]])
    found = [one.suspected(FACTORS.levels([Choice(using(BF16, other), 1.0)])) for other in (ADAM, SWAP)]
    never, nothing = ((each.chance[0], each.deviation[0]) for each in found)
    assert nothing[0] < 0.5 * never[0]
    assert never[1] == 0.3 > 2 * nothing[1]


def test_what_a_measurement_of_the_same_pair_has_told_already_is_not_suspected_again() -> None:
    """A point that was measured has its pair's effect in its estimate; another one with that pair has less of it."""
    known = random.Random(9).sample([one for one in EVERY if not has(one, BF16, ADAM)], 20)
    shown = using(BF16, ADAM, SWAP)
    one = model([*known, shown], [*(cost(each) for each in known), cost(shown) - 0.15])
    found = one.suspected(
        FACTORS.levels([Choice(shown, 1.0), Choice(using(BF16, ADAM, use("chunked", chunks=8)), 1.0)])
    )
    pair = (found.one == number(BF16)) & (found.other == number(ADAM))
    same, other = (found.mean[pair & (found.rows == row)] for row in (0, 1))
    assert np.abs(same) < 0.2 * np.abs(other)


def test_no_large_effect_is_needed_to_tell_two_noisy_measurements_apart() -> None:
    """The trap: with a tenth of noise, two measurements of one combination differ by a quarter now and then."""
    generator = random.Random(8)
    known = generator.sample(EVERY, 20) * 2
    logs = [cost(one) + generator.gauss(0, 0.1) for one in known]
    one = model(known, logs, noise=0.1)
    truth = np.array([cost(each) for each in EVERY])
    off = np.array(mean(one, *EVERY)) - truth
    assert math.sqrt(float(np.mean((off - off.mean()) ** 2))) < 0.12
