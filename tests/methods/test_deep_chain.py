"""A residual network of a thousand blocks: how its peak of memory grows with its depth, fitted."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.methods.deep import INPUT_BYTES, activation_peak, batch, deep

DEPTHS = (16, 63, 250, 1000)
SQRT, RECURSIVE = use("sqrt_checkpoint"), use("recursive_checkpoint")


@pytest.fixture(autouse=True, scope="module")
def nothing_older_is_scanned() -> Iterator[None]:
    """As in a worker: libraries' hundreds of thousands of objects are not looked at in every measurement."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@dataclass(frozen=True)
class Grown:
    """Chains of all depths with one method, or with none.

    Attributes:
        peaks: Bytes of activations at the peak of each one's first step.
        losses: Of the deepest before that step and after it.
        state: Of the deepest after that step.
    """

    peaks: tuple[int, ...]
    losses: tuple[float, float]
    state: dict[str, torch.Tensor]


@functools.cache
def _grown(name: str) -> Grown:
    settings = [setting for setting in (SQRT, RECURSIVE) if setting.name == name]
    peaks = [activation_peak(deep(depth, settings)) for depth in DEPTHS[:-1]]
    deepest = deep(DEPTHS[-1], settings)
    losses = [_loss(deepest)]
    peaks.append(activation_peak(deepest))
    losses.append(_loss(deepest))  # By a forward pass: a second step would take as long as the first.
    return Grown(tuple(peaks), (losses[0], losses[1]), deepest.state_dict()["model"])


def _loss(training: Training) -> float:
    return float(training.evaluate(lambda model: model(batch()).square().mean()))


def grown(*settings: MethodSetting) -> Grown:
    return _grown(settings[0].name if settings else "plain")


def peaks(*settings: MethodSetting) -> tuple[int, ...]:
    return grown(*settings).peaks


def exponent(*settings: MethodSetting) -> float:
    """Of the depth, in the power law that fits the peaks best."""
    return float(np.polyfit(np.log(DEPTHS), np.log(peaks(*settings)), 1)[0])


@pytest.mark.slow
class TestThePeakOfAStep:
    def test_grows_with_the_depth_when_everything_is_kept(self) -> None:
        assert 0.97 < exponent() < 1.03

    def test_grows_with_the_root_of_the_depth_in_as_many_segments(self) -> None:
        assert 0.42 < exponent(SQRT) < 0.58

    def test_grows_with_the_logarithm_of_the_depth_in_nested_halves(self) -> None:
        assert exponent(RECURSIVE) < 0.2
        slope, start = np.polyfit(np.log2(DEPTHS), np.array(peaks(RECURSIVE)) / INPUT_BYTES, 1)
        fitted = slope * np.log2(DEPTHS) + start
        assert 0.5 < slope < 1.5  # One input more, each time that the depth doubles.
        assert np.abs(fitted * INPUT_BYTES / peaks(RECURSIVE) - 1.0).max() < 0.1

    def test_of_a_thousand_blocks_is_a_small_part_of_keeping_everything(self) -> None:
        assert peaks(SQRT)[-1] < 0.07 * peaks()[-1]
        assert peaks(RECURSIVE)[-1] < 0.01 * peaks()[-1]


@pytest.mark.slow
def test_a_thousand_blocks_train_to_the_same_bits() -> None:
    plain = grown()
    for changed in (plain, grown(SQRT), grown(RECURSIVE)):
        assert changed.losses[1] < changed.losses[0]
        assert changed.losses == plain.losses
        assert all(torch.equal(changed.state[name], value) for name, value in plain.state.items())
