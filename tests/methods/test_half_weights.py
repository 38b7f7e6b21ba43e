"""float16 weights: gradients that stay scaled until the update, and state that keeps its range."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.formats._loss_scaling import HalfLossScaler
from advisor.methods.formats._rounding import Rounding
from advisor.methods.formats._short_state import HalfState
from advisor.methods.setting import use
from advisor.training.training import Training
from advisor.trial.worker.bench import until_updated
from tests.methods.tiny import images, training_of

HALF = use("half_weights", rounding="nearest")

few_pixels = functools.partial(images, side=16)
"""Products in float16 are slow where they are emulated."""


def half(**options: Any) -> Training:
    training = training_of("convnet", **options)
    apply_settings(training, [HALF])
    return training


def test_torch_refuses_such_gradients_and_this_scaler_leaves_them_scaled() -> None:
    training = half()
    training.backward(training.forward(few_pixels(2)))
    gradient = training.model.head.weight.grad  # type: ignore[union-attr]
    before = gradient.clone()  # type: ignore[operator,union-attr]
    assert before.dtype == torch.float16
    plain = torch.amp.GradScaler("cpu")
    plain.scale(torch.zeros(()))
    with pytest.raises(ValueError, match="FP16 gradients"):
        plain.unscale_(training.optimizer)
    scaler = training.gradient_scaler
    assert isinstance(scaler, HalfLossScaler)
    scaler.unscale_(training.optimizer)
    assert torch.equal(gradient, before)  # type: ignore[arg-type]
    assert float(scaler.inverse()) * scaler.get_scale() == 1.0


def test_the_update_is_that_of_the_true_gradient_whatever_the_scale() -> None:
    moved = []
    for scale in (2.0**4, 2.0**12):
        training = half(build_optimizer=lambda p: torch.optim.SGD(p, lr=0.5))
        assert training.gradient_scaler is not None
        training.gradient_scaler.load_state_dict({**training.gradient_scaler.state_dict(), "scale": scale})
        before = training.model.head.weight.detach().double().clone()  # type: ignore[union-attr,operator]
        torch.manual_seed(0)
        training.step(few_pixels(2))
        moved.append(training.model.head.weight.detach().double() - before)  # type: ignore[union-attr,operator]
    assert float(moved[0].norm()) > 0.01
    assert float((moved[0] - moved[1]).norm() / moved[0].norm()) < 0.02


def test_a_step_whose_gradients_overflow_is_skipped_and_lowers_the_scale() -> None:
    training = half()
    assert training.gradient_scaler is not None
    training.gradient_scaler.load_state_dict({**training.gradient_scaler.state_dict(), "scale": 2.0**24})
    before = copy.deepcopy(training.state_dict()["model"])
    training.step(few_pixels(2))
    assert training.gradient_scaler.get_scale() == 2.0**23
    assert torch.equal(training.state_dict()["model"]["head.weight"], before["head.weight"])
    until_updated(training, lambda: training.step(few_pixels(2)))
    assert not torch.equal(training.state_dict()["model"]["head.weight"], before["head.weight"])


def test_an_epsilon_that_is_zero_in_float16_still_counts() -> None:
    """Trap: 1e-8 is zero in float16, and a parameter without a gradient would become zero divided by zero."""
    assert torch.tensor(1e-8, dtype=torch.float16) == 0.0
    training = half(build_optimizer=lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-8))
    for step in range(3):
        loss = training.forward(few_pixels(2, seed=step))
        training.backward(loss)
        training.model.blocks[0].conv.weight.grad[0].zero_()  # type: ignore[index,union-attr]
        training.optimizer_step()
    assert all(bool(value.isfinite().all()) for value in training.state_dict()["model"].values())


def test_clipping_counts_in_true_units_in_which_the_sum_of_squares_would_not_fit_into_float16() -> None:
    plain, short = training_of("convnet"), half()
    norms = []
    for training in (plain, short):
        torch.manual_seed(0)
        training.backward(training.forward(few_pixels(2)))
        norms.append(float(training.clip_grad_norm(0.01)))
    assert norms[1] == pytest.approx(norms[0], rel=0.01)
    assert short.gradient_scaler is not None
    scale = short.gradient_scaler.get_scale()
    gradients = [p.grad.double() / scale for p in short.model.parameters() if p.grad is not None]
    assert float(sum(g.square().sum() for g in gradients) ** 0.5) == pytest.approx(0.01, rel=0.01)
    short.optimizer_step()


class TestHowStateIsHeld:
    """Trap: squares of gradients are zero in float16, and training diverges at once."""

    def held(self, value: torch.Tensor) -> torch.Tensor:
        packed = HalfState().pack({"moment": value, "step": torch.tensor(3.0)}, Rounding(stochastic=True))
        assert packed["moment"].dtype == torch.float16
        back = HalfState().unpack(packed)
        assert set(back) == {"moment", "step"}
        assert back["step"] == 3.0
        moment: torch.Tensor = back["moment"]
        return moment

    @pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
    def test_of_any_size_over_a_range_of_2_to_the_56(self, size: float) -> None:
        value = size * torch.logspace(0, -56, 1000, base=2.0) * torch.tensor([1.0, -1.0]).repeat(500)
        assert torch.allclose(self.held(value), value, rtol=2.0**-9, atol=0.0)

    def test_nothing_but_zero(self) -> None:
        assert torch.equal(self.held(torch.zeros(5)), torch.zeros(5))

    def test_what_was_held_is_held_again_to_the_bit(self) -> None:
        value = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) ** 3
        first = HalfState().pack({"moment": value}, Rounding(stochastic=True))
        again = HalfState().pack(HalfState().plain(first), Rounding(stochastic=False))
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_it_goes_on_from_a_saved_state_for_several_steps_to_the_bit() -> None:
    first, second = half(), half()
    torch.manual_seed(0)
    first.step(few_pixels(2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for training in (first, second):
        torch.manual_seed(1)
        for step in range(3):
            training.step(few_pixels(2, seed=step))
    states = [training.state_dict() for training in (first, second)]
    assert all(torch.equal(value, states[1]["model"][name]) for name, value in states[0]["model"].items())
    for index, entries in states[0]["optimizer"]["state"].items():
        assert all(torch.equal(value, states[1]["optimizer"]["state"][index][name]) for name, value in entries.items())


def test_a_saved_state_is_that_of_the_plain_optimizer() -> None:
    plain, short = training_of("convnet"), half()
    for training in (plain, short):
        torch.manual_seed(0)
        training.step(few_pixels(2))
    given, usual = (training.state_dict()["optimizer"]["state"] for training in (short, plain))
    for index, entries in usual.items():
        assert list(given[index]) == list(entries)
        for name, value in entries.items():
            assert given[index][name].dtype == value.dtype == torch.float32
            if value.dim() < 2:
                continue  # A bias before BatchNorm has no gradient but noise.
            difference = (given[index][name] - value).double().norm()
            assert float(difference) <= 0.1 * float(value.double().norm()), name
    plain.load_state_dict(short.state_dict())
    plain.step(few_pixels(2))


def test_updating_in_the_backward_pass_is_refused() -> None:
    with pytest.raises(MethodRefusedError, match="all gradients for overflow"):
        apply_settings(training_of("convnet"), [HALF, use("optimizer_in_backward")])


def test_a_state_that_is_made_before_the_first_step_is_held_as_any_other() -> None:
    """Trap: Adagrad sums squares from its beginning, and in float16 they would be added to as they are."""
    training = training_of("convnet", build_optimizer=lambda p: torch.optim.Adagrad(p, lr=1e-3))
    apply_settings(training, [HALF])
    training.step(few_pixels(4))
    sums = [(p, entries["sum"]) for p, entries in training.optimizer.state.items()]
    assert all("sum.scale" in training.optimizer.state[p] and value.dtype == torch.float16 for p, value in sums)
