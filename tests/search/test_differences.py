"""Measurements in turn tell the model about differences."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.methods.setting import use
from advisor.search.propose.cost_model import Batches, CostModel
from advisor.search.propose.differences import Beside, Differences
from advisor.search.space.factors import Choice, Factors
from advisor.search.space.space import Combination

from .synthetic import space

SPACE = space(fractions=(1.0,))
FACTORS = Factors(SPACE)
PLAIN = Combination()
BF16, SMALL = (Combination((one,)) for one in (use("precision", dtype="bf16"), use("small_adam")))


def levels(*combinations: Combination) -> np.ndarray:
    return FACTORS.levels(Choice(one, 1.0) for one in combinations)


def learned(absolute: float, noise: float, **ratios: float) -> CostModel:
    """The model after one measurement of plain training and two of others in turn with it."""
    beside = Beside(rows=np.array([1, 2]), levels=levels(PLAIN, PLAIN), log_batches=np.zeros(2))
    logs = np.array([absolute, ratios["bf16"], ratios["small"]])
    return CostModel(FACTORS, levels(PLAIN, BF16, SMALL), logs, np.array([noise, 0.005, 0.005]), beside=beside)


def test_a_ratio_places_a_combination_relative_to_its_partner() -> None:
    found = learned(3.0, 0.01, bf16=-0.4, small=0.1).estimate(levels(PLAIN, BF16, SMALL)).mean
    assert found == pytest.approx([3.0, 2.6, 3.1], abs=0.02)


def test_the_error_of_the_common_partner_leaves_the_order_of_the_others_certain() -> None:
    mean, covariance = learned(3.0, 0.2, bf16=-0.4, small=-0.38).joint(levels(BF16, SMALL), np.zeros(2))
    difference = np.array([1.0, -1.0])
    assert difference @ mean == pytest.approx(-0.02, abs=0.003)
    assert difference @ covariance @ difference < 0.01**2
    assert covariance[0, 0] > 0.1**2


def test_a_joint_estimate_agrees_with_those_of_each() -> None:
    model, some = learned(3.0, 0.05, bf16=-0.4, small=0.1), levels(PLAIN, BF16, SMALL)
    mean, covariance = model.joint(some, np.zeros(3))
    each = model.estimate(some)
    assert mean == pytest.approx(each.mean)
    assert np.sqrt(np.diag(covariance)) == pytest.approx(each.deviation, rel=1e-6)


def test_pending_points_change_nothing_but_certainty() -> None:
    model, some = learned(3.0, 0.05, bf16=-0.4, small=0.1), levels(PLAIN, BF16, SMALL)
    both = levels(Combination((*BF16.settings, *SMALL.settings)))
    believing = model.believing(both, 0.02)
    assert believing.estimate(some).mean == pytest.approx(model.estimate(some).mean)
    assert believing.estimate(both).deviation[0] < model.estimate(both).deviation[0]


def test_a_ratio_at_small_batches_says_less_about_large_ones() -> None:
    """Both have a fixed time of as long as 8 samples take, and one of them halves it."""
    sizes = np.array([8.0, 64.0, 8.0])
    logs = np.log([1 + 8 / 8, 1 + 8 / 64, (1 + 4 / 8) / (1 + 8 / 8)])
    beside = Beside(rows=np.array([2]), levels=levels(PLAIN), log_batches=np.log([8.0]))
    batches = Batches(np.log(sizes), np.log(np.full(3, 64.0)))
    model = CostModel(FACTORS, levels(PLAIN, PLAIN, SMALL), logs, np.full(3, 0.005), batches, beside)
    mean, _ = model.joint(levels(PLAIN, SMALL, PLAIN, SMALL), np.log([8.0, 8.0, 64.0, 64.0]))
    assert mean[1] - mean[0] == pytest.approx(logs[2], abs=0.02)
    assert logs[2] < mean[3] - mean[2] < 0.6 * logs[2] < 0


def test_measurements_follow_from_points_and_weights_go_back_to_them() -> None:
    beside = Beside(rows=np.array([1, 2]), levels=levels(PLAIN, PLAIN), log_batches=np.zeros(2))
    said, every, _ = Differences.among(levels(PLAIN, BF16, SMALL), np.zeros(3), beside)
    assert len(every) == 4, "the partner is one point for both"
    values = np.array([3.0, 2.6, 3.1, 3.0])
    assert said.of(values) == pytest.approx([3.0, -0.4, 0.1])
    assert list(said.absolute) == [True, False, False]
    weights = np.array([0.5, 2.0, -1.0])
    assert said.to_points(weights, 4) @ values == pytest.approx(weights @ said.of(values))


def test_some_of_the_measurements_need_only_their_points() -> None:
    beside = Beside(rows=np.array([1, 2]), levels=levels(PLAIN, SMALL), log_batches=np.zeros(2))
    said, _, _ = Differences.among(levels(PLAIN, BF16, SMALL), np.zeros(3), beside)
    values = np.array([3.0, 2.6, 3.2, 3.0, 3.1])
    for numbers in ([0, 2], [0], [1, 2]):
        fewer, points = said.those(np.array(numbers))
        assert fewer.of(values[points]) == pytest.approx(said.of(values)[numbers])
    assert len(said.those(np.array([0]))[1]) == 1
