"""What a few measurements say of all combinations."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from advisor.hardware.mesh import MeshAxis
from advisor.methods.setting import MethodSetting, use
from advisor.search.propose.batch_model import Estimate
from advisor.search.propose.cost_model import Batches, CostModel
from advisor.search.space.factors import Choice, Factors
from advisor.search.space.space import Axis, Combination, ResolvedSpace

from .synthetic import RATES, SETTINGS, Instance, rate, space
from .test_several_devices import several

SPACE = space(fractions=(1.0,))
EVERY = [Choice(combination, 1.0) for combination in SPACE.combinations()]


def choices(count: int, seed: int = 0) -> list[Choice]:
    return random.Random(seed).sample(EVERY, count)


def model(of: ResolvedSpace, measured: list[tuple[Choice, float]]) -> CostModel:
    factors = Factors(of)
    levels = factors.levels(choice for choice, _ in measured)
    return CostModel(factors, levels, np.array([log for _, log in measured]), np.full(len(measured), 0.01))


def expected(one: CostModel, of: ResolvedSpace, *combinations: Combination) -> Estimate:
    return one.estimate(Factors(of).levels(Choice(combination, 1.0) for combination in combinations))


def log_seconds(choice: Choice) -> float:
    return -math.log(rate(choice.combination.settings, choice.fraction))


def test_effects_that_add_up_are_recovered_from_a_few_of_many_combinations() -> None:
    drawn = choices(40)
    learned = model(SPACE, [(choice, log_seconds(choice)) for choice in drawn])
    labels = [setting.label for settings in SETTINGS.values() for setting in settings]
    alone = [Combination((setting,)) for settings in SETTINGS.values() for setting in settings]
    means = expected(learned, SPACE, Combination(), *alone).mean
    ratios = dict(zip(labels, np.exp(means[0] - means[1:]), strict=True))
    assert ratios == pytest.approx(RATES, rel=0.08)


def test_what_was_not_measured_is_known_less_well_and_the_deviation_says_how_well() -> None:
    drawn = choices(30)
    learned = model(SPACE, [(choice, log_seconds(choice)) for choice in drawn])
    left = [choice for choice in EVERY if choice not in drawn]
    found = learned.estimate(Factors(SPACE).levels(left))
    off = np.abs(found.mean - [log_seconds(choice) for choice in left]) / found.deviation
    assert np.mean(off < 2) > 0.9
    assert found.deviation.mean() > 2 * learned.estimate(Factors(SPACE).levels(drawn)).deviation.mean()


def test_a_combination_that_is_not_the_sum_of_its_settings_is_believed_when_it_is_measured() -> None:
    both = Choice(Combination((use("precision", dtype="bf16"), use("small_adam"))), 1.0)
    others = [choice for choice in choices(40) if choice != both]
    learned = model(SPACE, [*((choice, log_seconds(choice)) for choice in others), (both, log_seconds(both) + 0.3)])
    found = expected(learned, SPACE, both.combination)
    assert found.mean[0] == pytest.approx(log_seconds(both) + 0.3, abs=0.05)


def test_a_noisy_figure_counts_less_than_a_sure_one() -> None:
    factors = Factors(SPACE)
    plain = Combination()
    levels = factors.levels([Choice(plain, 1.0), Choice(plain, 1.0)])
    learned = CostModel(factors, levels, np.array([0.0, 0.4]), np.array([0.01, 0.3]))
    assert abs(expected(learned, SPACE, plain).mean[0]) < 0.02


def test_one_setting_says_something_of_another_of_its_method() -> None:
    slow = use("checkpoint", every=1)
    measured = [(Choice(Combination(), 1.0), 0.0), (Choice(Combination((slow,)), 1.0), 0.5)]
    sibling, stranger = Combination((use("checkpoint", every=2),)), Combination((use("small_adam"),))
    means = expected(model(SPACE, measured), SPACE, sibling, stranger).mean
    assert means[0] > means[1] + 0.05


def test_what_methods_declare_is_expected_until_something_is_measured() -> None:
    of = Instance(0).space(**{"first(level=0)": 0.5})
    one, other = (Combination((use("first", level=level),)) for level in (0, 1))
    before = expected(model(of, [(Choice(Combination(), 1.0), 2.0)]), of, one, other).mean
    assert before == pytest.approx([2.0 + math.log(0.5), 2.0], abs=0.01)
    measured = [(Choice(Combination(), 1.0), 2.0), (Choice(one, 1.0), 2.2)]
    after = expected(model(of, measured), of, one).mean
    assert after[0] == pytest.approx(2.2, abs=0.02)


def test_the_number_of_devices_and_the_share_of_the_batch_are_factors_too() -> None:
    of = ResolvedSpace(
        name="devices",
        fidelity=SPACE.fidelity,
        axes=(
            Axis(method="ways", settings=(use("ways"),), divides=MeshAxis.DATA),
            Axis(method="a", settings=(use("a"),)),
        ),
        batch_fractions=(1.0, 0.5),
        recipes=(),
        refused={},
        dropped_recipes={},
        conflicts={},
        gpu_counts=(1, 2),
    )
    ways, a = use("ways"), use("a")
    measured = [
        (Choice(Combination(), 1.0), 0.0),
        (Choice(Combination(), 0.5), 0.2),
        (Choice(Combination((ways,), 2), 1.0), -0.6),
        (Choice(Combination((a,)), 1.0), -0.3),
    ]
    factors = Factors(of)
    learned = model(of, measured)
    untried = factors.levels([Choice(Combination((a, ways), 2), 1.0), Choice(Combination((a,)), 0.5)])
    assert learned.estimate(untried).mean == pytest.approx([-0.9, -0.1], abs=0.12)


def test_what_is_believed_to_turn_out_as_expected_changes_no_mean_and_leaves_less_doubt() -> None:
    drawn = choices(10)
    learned = model(SPACE, [(choice, log_seconds(choice)) for choice in drawn])
    waiting = next(choice for choice in EVERY if choice not in drawn)
    levels = Factors(SPACE).levels([waiting])
    believed = learned.believing(levels, 0.01)
    everything = Factors(SPACE).levels(EVERY)
    before, after = learned.estimate(everything), believed.estimate(everything)
    assert after.mean == pytest.approx(before.mean, abs=1e-9)
    assert (after.deviation <= before.deviation + 1e-9).all()
    assert believed.estimate(levels).deviation[0] < 0.02 < learned.estimate(levels).deviation[0]


def test_a_method_that_pays_by_the_batch_that_it_leaves_room_for_pays_less_beside_another() -> None:
    """The trap: checkpointing is the fastest where nothing else saves memory, and stays in every proposal for ever."""
    of = Factors(space("checkpoint", "small_adam", "precision", fractions=(1.0,)))
    checkpoint, adam, bf16 = SETTINGS["checkpoint"][0], SETTINGS["small_adam"][0], SETTINGS["precision"][0]
    every: list[tuple[MethodSetting, ...]] = [(), (checkpoint,), (adam,), (bf16,)]
    largest = np.array([2.0, 16.0, 8.0, 4.0])

    def cost(settings: tuple[MethodSetting, ...], batch: float) -> float:
        return math.log((1.3 if checkpoint in settings else 1.0) * (1 + 4 / batch))

    known = of.levels(Choice(Combination(settings), 1.0) for settings in (*every, *every))
    sizes = np.concatenate([largest, largest / 2])
    logs = np.array([cost(settings, batch) for settings, batch in zip((*every, *every), sizes, strict=True)])
    without, beside = of.levels(
        Choice(Combination(tuple(sorted(settings, key=lambda one: one.name))), 1.0)
        for settings in ((adam, bf16), (adam, bf16, checkpoint))
    )
    gains = []
    for batches in (None, Batches(np.log(sizes), np.log(np.concatenate([largest, largest])))):
        estimate = CostModel(of, known, logs, np.full(len(logs), 0.01), batches).estimate(np.array([without, beside]))
        gains.append(float(estimate.mean[0] - estimate.mean[1]))
    assert gains[0] > 0.1, "without batches it looks like the best there is"
    assert gains[1] < gains[0] - 0.1


def test_what_a_number_of_devices_does_tells_what_fewer_do() -> None:
    of = several(1, 2, 4, 8)
    factors = Factors(of)
    points = [of.on_devices((), count) for count in (1, 8, 4)]
    levels = factors.levels(Choice(one, of.batch_fractions[0]) for one in points if one is not None)
    model = CostModel(factors, levels[:2], np.array([0.0, -2.0]), np.full(2, 0.02))
    found = model.estimate(levels[2:])
    assert found.mean[0] == pytest.approx(-2.0 * math.log(4) / math.log(8), abs=0.3)


def test_what_saves_a_steps_own_time_hardly_counts_where_samples_are_slow() -> None:
    """Launches that compilation saves are nothing beside a recomputation: found of each alone, true of both."""
    of = Factors(space("checkpoint", "small_adam", "precision", fractions=(1.0,)))
    slow, launches = SETTINGS["checkpoint"][0], SETTINGS["small_adam"][0]

    def cost(settings: tuple[MethodSetting, ...], batch: float) -> float:
        own, each = (0.2 if launches in settings else 1.0), (4.0 if slow in settings else 1.0)
        return math.log(each + own / batch * 8)

    every: list[tuple[MethodSetting, ...]] = [(), (slow,), (launches,)]
    sizes = np.repeat([4.0, 8.0, 16.0], 3)
    known = of.levels(Choice(Combination(settings), 1.0) for settings in every * 3)
    logs = np.array([cost(settings, batch) for settings, batch in zip(every * 3, sizes, strict=True)])
    model = CostModel(of, known, logs, np.full(9, 0.005), Batches(np.log(sizes), np.full(9, math.log(8.0))))
    both = of.levels([Choice(Combination((slow, launches)), 1.0)])
    assert model.estimate(both).mean[0] == pytest.approx(cost((slow, launches), 8.0), abs=0.12)
    sum_of_effects = cost((slow,), 8.0) + cost((launches,), 8.0) - cost((), 8.0)
    assert sum_of_effects < cost((slow, launches), 8.0) - 0.3, "what a sum would have it"
