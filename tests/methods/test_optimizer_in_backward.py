"""Optimizer in backward: the same updates, by the same optimizer, and no gradient left over."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.training.processes.world import World
from advisor.training.training import Training
from tests.methods.tiny import adamw, gpt2, images, text, training_of

IN_BACKWARD = use("optimizer_in_backward")

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "two groups": lambda p: torch.optim.AdamW([{"params": p[:3], "lr": 0.1}, {"params": p[3:]}], lr=0.01),
}


def trained(settings: list[Any], build_optimizer: Any, steps: int = 3) -> Training:
    training = training_of("convnet", build_optimizer=build_optimizer)
    apply_settings(training, settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, gamma=0.5)
    for step in range(steps):
        torch.manual_seed(step)
        training.step(images(4, seed=step))
        scheduler.step()
    return training


@pytest.mark.parametrize("build_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_parameters_and_optimizer_state_are_bit_equal_under_a_scheduler(build_optimizer: Any) -> None:
    plain, changed = trained([], build_optimizer), trained([IN_BACKWARD], build_optimizer)
    before, after = plain.state_dict(), changed.state_dict()
    assert all(torch.equal(after["model"][name], before["model"][name]) for name in before["model"])
    assert after["optimizer"]["param_groups"] == before["optimizer"]["param_groups"]
    states = before["optimizer"]["state"], after["optimizer"]["state"]
    assert states[0].keys() == states[1].keys() != set()
    for number, plain_state in states[0].items():
        for name, value in plain_state.items():
            assert torch.equal(torch.as_tensor(states[1][number][name]), torch.as_tensor(value))


def test_tied_weights_are_updated_once_with_their_whole_gradient() -> None:
    states = []
    for settings in ([], [IN_BACKWARD]):
        training = Training(gpt2(2), build_optimizer=adamw)
        apply_settings(training, settings)
        torch.manual_seed(0)
        training.step(text(2, 16))
        states.append(training.state_dict()["model"])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_gradients_are_gone_after_the_backward_pass() -> None:
    training = training_of("convnet")
    apply_settings(training, [IN_BACKWARD])
    training.backward(training.forward(images(2)))
    assert all(parameter.grad is None for parameter in training.model.parameters())


class TestRefusals:
    def test_clipping_by_the_workload(self) -> None:
        with pytest.raises(MethodRefusedError, match=r"max_grad_norm=1\.0"):
            apply_settings(training_of("convnet", max_grad_norm=1.0), [IN_BACKWARD])

    def test_clipping_in_a_loop_of_the_user(self) -> None:
        training = training_of("convnet")
        apply_settings(training, [IN_BACKWARD])
        training.backward(training.forward(images(2)))
        with pytest.raises(MethodRefusedError, match="remove optimizer_in_backward"):
            training.clip_grad_norm(1.0)

    def test_accumulation_in_a_loop_of_the_user(self) -> None:
        training = training_of("convnet")
        apply_settings(training, [IN_BACKWARD])
        training.backward(training.forward(images(2)))
        with pytest.raises(MethodRefusedError, match=r"second gradient before optimizer_step\(\)"):
            training.backward(training.forward(images(2)))

    def test_a_scaler(self) -> None:
        training = training_of("convnet")
        training.gradient_scaler = torch.amp.GradScaler("cpu")
        with pytest.raises(MethodRefusedError, match="float16"):
            apply_settings(training, [IN_BACKWARD])

    def test_optimizers_that_look_at_all_parameters_or_are_unknown(self) -> None:
        class Mine(torch.optim.SGD):
            pass

        for build in (lambda p: torch.optim.LBFGS(p), lambda p: Mine(p, lr=0.1)):
            with pytest.raises(MethodRefusedError, match="parameters one by one"):
                apply_settings(training_of("convnet", build_optimizer=build), [IN_BACKWARD])

    def test_several_ranks(self) -> None:
        with pytest.raises(MethodRefusedError, match="gradients that are not yet averaged"):
            apply_settings(training_of("convnet", world=World(0, 2)), [IN_BACKWARD])


def test_frozen_parameters_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].weight.requires_grad_(False)
    training = Training(
        model,
        compute_loss=lambda model, batch: model(batch).mean(),
        build_optimizer=lambda _: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    apply_settings(training, [IN_BACKWARD])
    before = model[0].weight.clone()
    training.step(torch.ones(2, 4))
    assert torch.equal(model[0].weight, before)


def test_a_parameter_that_is_unfrozen_later_is_not_silently_left_as_it_is() -> None:
    frozen: list[torch.nn.Parameter] = []

    def build(parameters: Any) -> torch.optim.Optimizer:
        members = list(parameters)
        frozen.append(members[0].requires_grad_(False))
        return adamw(members)

    training = training_of("convnet", build_optimizer=build)
    apply_settings(training, [use("optimizer_in_backward")])
    training.step(images(2))
    frozen[0].requires_grad_()
    with pytest.raises(MethodRefusedError, match="1 began to later"):
        training.step(images(2))


def test_nothing_of_the_training_lives_on_when_it_is_closed() -> None:
    """A hook of the parameter holds it through autograd, where no garbage collector looks."""
    training = trained([IN_BACKWARD], OPTIMIZERS["Adam"], steps=1)
    parameter = weakref.ref(next(training.model.parameters()))
    training.close()
    del training
    gc.collect()
    assert parameter() is None
