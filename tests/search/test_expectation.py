"""What is expected of the untried: better than the best so far, and whether it works at all."""

from __future__ import annotations

import math
import random

import numpy as np
import optuna
import pytest

from advisor.methods.setting import MethodSetting, use
from advisor.search.propose.expectation import Expectation, Expectations, Observation
from advisor.search.propose.history import observations_of
from advisor.search.space.factors import Choice, Factors
from advisor.search.space.parameters import Parameters
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Proposer

from .synthetic import space

SPACE = space("precision", "checkpoint", "small_adam", fractions=(1.0,))
FACTORS = Factors(SPACE)
BF16, EVERY_1, EVERY_2, ADAM = (
    use("precision", dtype="bf16"),
    use("checkpoint", every=1),
    use("checkpoint", every=2),
    use("small_adam"),
)


def choice(*settings: MethodSetting) -> Choice:
    return Choice(Combination(tuple(sorted(settings, key=lambda one: one.name))), 1.0)


def seen(log: float | tuple[float, ...] | None, *settings: MethodSetting, **changes: object) -> Observation:
    logs = (log,) if isinstance(log, float) else log
    return Observation(choice=choice(*settings), logs=logs, **changes)  # type: ignore[arg-type]


def expected(observations: list[Observation], *choices: Choice, weights: tuple[float, ...] = (1.0,)) -> Expectation:
    return Expectations(FACTORS, observations, weights).of(FACTORS.levels(choices))


def test_more_is_expected_of_what_has_the_settings_that_helped() -> None:
    known = [seen(0.0), seen(-0.4, BF16), seen(0.3, EVERY_1)]
    found = expected(known, choice(BF16, ADAM), choice(EVERY_1, ADAM))
    assert found.improvement[0] > 10 * found.improvement[1]
    assert found.mean[0] < found.mean[1] - 0.4


def test_less_is_expected_beside_a_point_that_is_under_way() -> None:
    known = [seen(0.0), seen(-0.4, BF16)]
    waiting = [*known, seen(None, BF16, ADAM, under_way=True)]
    beside, elsewhere = choice(BF16, ADAM, EVERY_1), choice(EVERY_2)
    alone, spread = (expected(some, beside, elsewhere).improvement for some in (known, waiting))
    assert spread[0] < 0.95 * alone[0]
    assert spread[1] == pytest.approx(alone[1], rel=0.1)


def test_of_a_thousand_figures_those_chosen_tell_nearly_as_much() -> None:
    generator = random.Random(0)
    every = [Choice(one, 1.0) for one in SPACE.combinations()]
    effects = {setting.label: generator.gauss(0.0, 0.3) for axis in SPACE.axes for setting in axis.settings}
    truth = np.array([sum(effects[one.label] for one in choice.combination.settings) for choice in every])
    drawn = [generator.randrange(len(every)) for _ in range(1000)]
    known = [
        seen(truth[one] + generator.gauss(0.0, 0.05), *every[one].combination.settings, noise=0.05) for one in drawn
    ]
    found = expected(known, *every)
    assert found.mean == pytest.approx(truth, abs=0.03)


def test_what_may_not_win_sets_no_mark_and_still_teaches() -> None:
    broken = [seen(0.0), seen(-0.5, ADAM, failed=True)]
    allowed = [seen(0.0), seen(-0.5, ADAM)]
    untried = choice(BF16)
    assert expected(broken, untried).improvement[0] > expected(allowed, untried).improvement[0]
    assert expected(broken, choice(ADAM, BF16)).mean[0] < -0.3
    assert expected(broken, choice(ADAM, BF16)).success[0] < 0.6


def test_what_did_not_fit_makes_its_neighbours_unlikely_to_fit() -> None:
    known = [seen(None, memory=0.3), seen(None, BF16, memory=0.2), seen(0.1, EVERY_1, memory=-0.1)]
    found = expected(known, choice(ADAM), choice(EVERY_1, ADAM))
    assert found.success[0] < 0.3 < 0.6 < found.success[1]


def test_before_anything_was_measured_what_is_likely_to_work_comes_first() -> None:
    found = expected([seen(None, ADAM, failed=True)], choice(ADAM, BF16), choice(BF16))
    assert found.improvement.tolist() == found.success.tolist()
    assert found.improvement[0] < found.improvement[1] == 1.0


def test_two_objectives_count_by_their_weights() -> None:
    known = [seen((0.0, 0.0)), seen((-0.5, 0.5), BF16), seen((0.5, -0.5), EVERY_1)]
    of = (choice(BF16, ADAM), choice(EVERY_1, ADAM))
    for weights, sign in (((1.0, 0.0), -1), ((0.0, 1.0), 1)):
        mean = expected(known, *of, weights=weights).mean
        assert np.sign(mean[0] - mean[1]) == sign


def test_trials_are_read_with_their_turn_their_noise_and_what_they_violate() -> None:
    one = Proposer(SPACE, storage=None, study_name="s", maximize=(True,))
    outcomes: list[tuple[float | None, dict[str, float], dict[str, object]]] = [
        (4.0, {"memory": -0.5}, {"noise": 0.03}),
        (None, {"memory": 0.5}, {}),
        (None, {"outcome": 1.0}, {}),
        (None, {"outcome": 1.0}, {"try_again": True}),
        (2.0, {"speed": 1.0}, {}),
        (2.0, {"fidelity": 1.0}, {}),
    ]
    for value, constraints, options in outcomes:
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, value, constraints, **options)  # type: ignore[arg-type]
    assert one.ask() is not None
    found = observations_of(one._study.get_trials(), Parameters(SPACE), (True,), {})
    assert found[0].logs == pytest.approx((-math.log(4.0),))
    assert found[0].noise == 0.03
    assert [seen.memory for seen in found[:2]] == pytest.approx([math.log(0.5), math.log(1.5)])
    assert [seen.failed for seen in found] == [False, False, True, False, False, True, False]
    assert [seen.logs is None for seen in found] == [False, True, True, True, False, False, True]
    assert [seen.under_way for seen in found] == [False] * 6 + [True]
    assert [seen.counts for seen in found] == [True, False, False, False, True, False, False]


def test_what_failed_in_the_sense_of_optuna_says_nothing() -> None:
    one = Proposer(SPACE, storage=None, study_name="s", maximize=(True,))
    proposal = one.ask()
    assert proposal is not None
    one.abandon(proposal)
    trials = one._study.get_trials()
    assert trials[0].state is optuna.trial.TrialState.FAIL
    assert observations_of(trials, Parameters(SPACE), (True,), {}) == []
