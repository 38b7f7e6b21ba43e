"""The optimizer on the host: the same updates by the same object, and nothing of it on the device."""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.hardware.host import HostMemory
from advisor.methods.compose import apply_settings, judge
from advisor.methods.setting import use
from advisor.text.units import format_bytes
from advisor.training.optimizer.device_parameter import device_parameter
from advisor.training.processes.world import World
from advisor.training.structure import parameter_bytes
from advisor.training.training import Training
from tests.methods.tiny import adamw, cpu, facts_of, gpt2, gpu, images, text, training_of

ON_HOST = use("host_optimizer")

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True),
    "Adagrad, which makes its state at once": lambda p: torch.optim.Adagrad(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "two groups": lambda p: torch.optim.AdamW([{"params": p[:3], "lr": 0.1}, {"params": p[3:]}], lr=0.01),
}


def trained(settings: list[Any], build_optimizer: Any, steps: int = 3, **options: Any) -> Training:
    training = training_of("convnet", build_optimizer=build_optimizer, **options)
    apply_settings(training, settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, gamma=0.5)
    for step in range(steps):
        torch.manual_seed(step)
        training.step(images(4, seed=step))
        scheduler.step()
    return training


def assert_same_state(left: Training, right: Training) -> None:
    before, after = left.state_dict(), right.state_dict()
    assert all(torch.equal(after["model"][name], before["model"][name]) for name in before["model"])
    assert after["optimizer"]["param_groups"] == before["optimizer"]["param_groups"]
    states = before["optimizer"]["state"], after["optimizer"]["state"]
    assert states[0].keys() == states[1].keys() != set()
    for number, plain_state in states[0].items():
        for name, value in plain_state.items():
            assert torch.equal(torch.as_tensor(states[1][number][name]), torch.as_tensor(value))


@pytest.mark.parametrize("build_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_parameters_and_optimizer_state_are_bit_equal_under_a_scheduler(build_optimizer: Any) -> None:
    assert_same_state(trained([], build_optimizer), trained([ON_HOST], build_optimizer))


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_gradients_of_micro_batches_are_added_in_the_same_order(micro_batch: int) -> None:
    plain, changed = (
        trained(settings, adamw, micro_batch=micro_batch, max_grad_norm=0.1) for settings in ([], [ON_HOST])
    )
    assert_same_state(plain, changed)


def test_tied_weights_are_updated_once_with_their_whole_gradient() -> None:
    states = []
    for settings in ([], [ON_HOST]):
        training = Training(gpt2(2), build_optimizer=adamw)
        apply_settings(training, settings)
        torch.manual_seed(0)
        training.step(text(2, 16))
        states.append(training.state_dict()["model"])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_optimizer_is_the_users_own_and_works_on_copies() -> None:
    training = training_of("convnet")
    optimizer = training.optimizer
    apply_settings(training, [ON_HOST])
    assert training.optimizer is optimizer
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parameters = list(training.model.parameters())
    assert [id(device_parameter(copy)) for copy in held] == [id(parameter) for parameter in parameters]
    training.step(images(2))
    storages = {parameter.untyped_storage()._cdata for parameter in parameters}
    assert not storages & {copy.untyped_storage()._cdata for copy in held}
    assert all(torch.equal(copy, parameter) for copy, parameter in zip(held, parameters, strict=True))
    assert set(optimizer.state) == set(held)


def test_no_gradient_stays_on_the_device() -> None:
    training = training_of("convnet")
    apply_settings(training, [ON_HOST])
    training.backward(training.forward(images(2)))
    assert all(parameter.grad is None for parameter in training.model.parameters())
    training.optimizer_step()
    assert all(copy.grad is None for group in training.optimizer.param_groups for copy in group["params"])


def test_clipping_in_a_loop_of_the_user_sees_all_gradients_of_all_passes() -> None:
    norms = []
    for settings in ([], [ON_HOST]):
        training = training_of("convnet")
        apply_settings(training, settings)
        for step in range(2):
            torch.manual_seed(step)
            training.backward(training.forward(images(2, seed=step)))
        norms.append(training.clip_grad_norm(0.01))
        training.optimizer_step()
    assert torch.equal(norms[0], norms[1])
    assert norms[0] > 0.01


def test_its_state_goes_on_in_a_plain_training_and_back() -> None:
    changed = trained([ON_HOST], adamw)
    plain = training_of("convnet")
    plain.load_state_dict(copy.deepcopy(changed.state_dict()))
    back = training_of("convnet")
    apply_settings(back, [ON_HOST])
    back.load_state_dict(copy.deepcopy(plain.state_dict()))
    for training in (changed, plain, back):
        torch.manual_seed(7)
        training.step(images(4, seed=7))
    assert_same_state(changed, plain)
    assert_same_state(changed, back)


def test_parameters_that_somebody_changed_on_the_device_are_not_undone() -> None:
    """Trap: the copies on the host would overwrite a loaded state, or weights that the user has set."""
    plain, changed = training_of("convnet"), training_of("convnet")
    apply_settings(changed, [ON_HOST])
    for training in (plain, changed):
        torch.manual_seed(0)
        training.step(images(2))
        with torch.no_grad():
            training.model.head.weight.zero_()
        training.step(images(2))
    assert_same_state(plain, changed)


def test_parameters_without_a_gradient_are_left_alone() -> None:
    """One is frozen, one takes no part in the loss."""
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)])
    model[0].weight.requires_grad_(False)
    training = Training(
        model,
        compute_loss=lambda model, batch: model[2](model[0](batch)).mean(),
        build_optimizer=lambda _: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5),
    )
    apply_settings(training, [ON_HOST])
    before = copy.deepcopy(model.state_dict())
    training.step(torch.ones(2, 4))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"0.bias", "2.weight", "2.bias"}


class LateCopy:
    """A copy of a gradient as a side stream of a CUDA device makes it: there only once its event was waited for."""

    made = 0

    def __init__(self, gradient: torch.Tensor, target: torch.Tensor) -> None:
        self._gradient: torch.Tensor | None = gradient.clone()
        self._target = target.fill_(float("nan"))

    def synchronize(self) -> None:
        if self._gradient is not None:
            self._target.copy_(self._gradient)
        self._gradient = None

    @classmethod
    def send(cls, copy: Any, gradient: torch.Tensor, target: torch.Tensor) -> None:
        assert copy._arrived is None or copy._arrived._gradient is None, "the gradient before is still on its way"
        copy._arrived = cls(gradient, target)
        cls.made += 1


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_gradients_that_are_on_their_way_are_waited_for(
    micro_batch: int, clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained([], adamw, micro_batch=micro_batch, max_grad_norm=clip)
    monkeypatch.setattr(LateCopy, "made", 0)
    sent = "advisor.methods.optimizers._host_optimizer._Copy._send"
    monkeypatch.setattr(sent, lambda *arguments: LateCopy.send(*arguments))
    changed = trained([ON_HOST], adamw, micro_batch=micro_batch, max_grad_norm=clip)
    assert LateCopy.made == 3 * (4 // micro_batch) * len(list(plain.model.parameters()))
    assert_same_state(plain, changed)


class TestRefusals:
    def test_a_cpu_is_the_host_already(self) -> None:
        assert "CPU" in judge([ON_HOST], facts=None, hardware=cpu()).reason

    @pytest.mark.parametrize(("free", "fits"), [(4 * 4000 * 5 // 4, True), (4 * 4000 * 5 // 4 - 1, False)])
    def test_a_host_that_cannot_hold_it_is_told_how_much_memory_is_needed(self, free: int, fits: bool) -> None:
        """4000 bytes of trained parameters, as much of gradients and twice as much of moments, in 80 %."""
        facts = facts_of("convnet", parameter_count=2000, trainable_parameter_count=1000, parameter_bytes=8000)
        verdict = judge([ON_HOST], facts=facts, hardware=msgspec.structs.replace(gpu((8, 0)), host_free_bytes=free))
        assert verdict.applicable == fits
        assert fits or "80%" in verdict.reason

    @pytest.mark.parametrize(("micro_batch", "numbers"), [(None, 4), (2, 5)])
    def test_the_host_is_looked_at_again_when_it_is_applied(
        self, micro_batch: int | None, numbers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A parameter, its gradient (two with micro-batches) and two moments."""
        needed = numbers * parameter_bytes(training_of("convnet").model)
        for free, fits in ((math.ceil(needed / 0.8), True), (math.floor(needed / 0.8) - 1, False)):
            host = HostMemory(total_bytes=2**30, free_bytes=free)
            monkeypatch.setattr("advisor.methods.optimizers.host_optimizer.host_memory", lambda host=host: host)
            training = training_of("convnet", micro_batch=micro_batch)
            with contextlib.nullcontext() if fits else pytest.raises(MethodRefusedError, match=format_bytes(free)):
                apply_settings(training, [ON_HOST])

    def test_sparse_gradients(self) -> None:
        model = nn.Embedding(8, 4, sparse=True)
        training = Training(
            model,
            compute_loss=lambda model, batch: model(batch).sum(),
            build_optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        )
        apply_settings(training, [ON_HOST])
        with pytest.raises(MethodRefusedError, match="sparse=False"):
            training.step(torch.tensor([1, 2]))

    def test_several_ranks(self) -> None:
        with pytest.raises(MethodRefusedError, match="before they are averaged"):
            apply_settings(training_of("convnet", world=World(0, 2)), [ON_HOST])

    @pytest.mark.parametrize("other", [use("precision", dtype="fp16"), use("optimizer_in_backward")])
    def test_what_needs_the_gradients_on_the_device(self, other: Any) -> None:
        with pytest.raises(MethodRefusedError, match="cannot be combined"):
            apply_settings(training_of("convnet"), [ON_HOST, other])
