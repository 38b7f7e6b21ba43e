"""How many samples memory has room for, from what others take whatever the batch and for each sample."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advisor.methods.setting import MethodSetting, use
from advisor.search.propose.batch_model import BatchModel
from advisor.search.propose.room_model import MemoryShares, RoomModel
from advisor.search.space.factors import Choice, Factors, Levels
from advisor.search.space.space import Combination

from .synthetic import space

SPACE = space("precision", "checkpoint", "small_adam", "swap", fractions=(1.0,))
FACTORS = Factors(SPACE)
EVERY = list(SPACE.combinations())
ADAM, EVERY_1 = use("small_adam"), use("checkpoint", every=1)
FIXED = {ADAM.label: 0.7, use("swap", gib=4).label: 0.9}
PER_SAMPLE = {EVERY_1.label: 0.3, use("checkpoint", every=2).label: 0.5, use("precision", dtype="bf16").label: 0.6}


def using(*settings: MethodSetting) -> Combination:
    return Combination(tuple(sorted(settings, key=lambda one: one.name)))


def taken(combination: Combination, fixed: float, per_sample: float) -> MemoryShares:
    return MemoryShares(
        fixed * math.prod(FIXED.get(one.label, 1.0) for one in combination.settings),
        per_sample * math.prod(PER_SAMPLE.get(one.label, 1.0) for one in combination.settings),
    )


def samples(shares: MemoryShares) -> float:
    return (0.95 - shares.fixed) / shares.per_sample


def levels(*combinations: Combination) -> Levels:
    return FACTORS.levels(Choice(one, 1.0) for one in combinations)


def room(known: list[Combination], fixed: float, per_sample: float, largest: list[float] | None = None) -> RoomModel:
    shares = [taken(one, fixed, per_sample) for one in known]
    ran = known[: len(largest or [])]
    return RoomModel(FACTORS, levels(*known), shares, levels(*ran), np.log(np.array(largest or [])))


def test_where_weights_fill_the_memory_what_saves_some_of_them_multiplies_the_batch() -> None:
    """Plain training leaves 5 % for samples, either method 14 or 32 %, both 38 %: no sum of effects on a log."""
    swap = use("swap", gib=4)
    known = [one for one in EVERY if not (ADAM in one.settings and swap in one.settings)][::3]
    both = using(ADAM, swap)
    truth = samples(taken(both, 0.9, 0.001))
    found = float(room(known, 0.9, 0.001).estimate(levels(both)).mean[0])
    assert math.exp(found) == pytest.approx(truth, rel=0.1)
    logs = np.log([samples(taken(each, 0.9, 0.001)) for each in known])
    as_a_sum = float(BatchModel(FACTORS, levels(*known), logs).estimate(levels(both)).mean[0])
    assert abs(as_a_sum - math.log(truth)) > 4 * abs(found - math.log(truth))


def test_few_samples_are_whole_and_one_more_is_counted_where_it_fits_exactly() -> None:
    known = [using()]
    assert np.exp(room(known, 0.5, 0.2).estimate(levels(using())).mean[0]) == pytest.approx(2.0, rel=0.05)
    one = RoomModel(FACTORS, levels(using()), [MemoryShares(0.5, 0.235)], levels(), np.zeros(0))
    assert np.exp(one.estimate(levels(using())).mean[0]) == pytest.approx(2.0, rel=0.15), "0.97 of the memory"


def test_what_does_not_fit_tells_what_will() -> None:
    """Plain training takes 1.3 times the memory; that alone does not make what saves most of it unlikely."""
    known = [using(), using(use("precision", dtype="bf16")), using(EVERY_1)]
    one = room(known, 0.5, 0.8)
    found = one.room(levels(using(), using(use("precision", dtype="fp16")), using(EVERY_1, ADAM)))
    assert found.fits[0] < 0.05
    assert found.fits[1] < 0.5
    assert found.fits[2] > 0.9


def test_a_batch_that_was_measured_is_known() -> None:
    known = [using(), using(ADAM)]
    one = room(known, 0.5, 0.01, largest=[44.0, 56.0])
    assert np.exp(one.estimate(levels(using())).mean[0]) == pytest.approx(44.0)
    assert one.room(levels(using())).fits[0] == 1.0


@pytest.mark.parametrize(("largest", "decides"), [([44.0], True), ([8.0], False)])
def test_it_says_whether_memory_or_something_else_limited_the_batches(largest: list[float], decides: bool) -> None:
    assert room([using(), using(ADAM)], 0.5, 0.01, largest=largest).decides is decides
