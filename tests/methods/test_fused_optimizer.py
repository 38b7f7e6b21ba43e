"""Fused optimizers: the same updates but for rounding, over the same groups, also with a scaled loss."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.contract.observe import relative_error
from tests.methods.tiny import images, training_of

FUSED = use("fused_optimizer")

OPTIMIZERS = {
    "Adam": lambda p: torch.optim.Adam(p, eps=1e-3, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, eps=1e-3, amsgrad=True),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, eps=1e-3, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad, which makes its state at once": lambda p: torch.optim.Adagrad(p, eps=1e-3),
    "a learning rate that is a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), eps=1e-3, foreach=False),
}


def movement(settings: list[Any], build_optimizer: Any) -> dict[str, torch.Tensor]:
    training = training_of("convnet", build_optimizer=build_optimizer)
    before = {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
    apply_settings(training, settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, gamma=0.5)
    for step in range(3):
        torch.manual_seed(step)
        training.step(images(4, seed=step))
        scheduler.step()
    assert not settings or all(group["fused"] for group in training.optimizer.param_groups)
    return {name: parameter.detach() - before[name] for name, parameter in training.model.named_parameters()}


@pytest.mark.parametrize("build_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_parameters_move_as_without_it(build_optimizer: Any) -> None:
    assert relative_error(movement([FUSED], build_optimizer), movement([], build_optimizer)) < 1e-4


def test_groups_are_kept() -> None:
    def build(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": parameters[:2], "lr": 0.5, "name": "slow"},
            {"params": parameters[2:], "weight_decay": 0.25},
        ]
        return torch.optim.AdamW(groups, lr=0.125, betas=(0.5, 0.75))

    training = training_of("convnet", build_optimizer=build)
    apply_settings(training, [FUSED])
    first, second = training.optimizer.param_groups
    assert (first["lr"], first["weight_decay"], first["betas"], first["name"]) == (0.5, 0.01, (0.5, 0.75), "slow")
    assert (second["lr"], second["weight_decay"], len(second["params"])) == (0.125, 0.25, 16)
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert training.optimizer.param_groups[2]["fused"]


def test_an_optimizer_that_is_fused_already_stays_and_the_user_is_told() -> None:
    training = training_of("convnet", build_optimizer=lambda p: torch.optim.AdamW(p, fused=True))
    optimizer = training.optimizer
    apply_settings(training, [FUSED])
    assert training.optimizer is optimizer
    assert "changed nothing" in training.notes[0]


def one_weight(max_grad_norm: float | None = None) -> Training:
    """A weight of 1 that a learning rate of 1 moves by its gradient, which is the batch, with a loss scaled by 4."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    training = Training(
        model,
        compute_loss=lambda model, batch: (model.weight * batch).sum(),
        build_optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        max_grad_norm=max_grad_norm,
    )
    apply_settings(training, [FUSED])
    training.gradient_scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    return training


def test_under_a_scaled_loss_gradients_are_unscaled_once_and_overflows_are_skipped() -> None:
    """Trap: torch hands the scale to a fused optimizer, which must not unscale what clipping has unscaled."""
    training = one_weight()
    training.step(torch.tensor(0.25))
    assert training.model.weight.item() == 0.75
    training.step(torch.tensor(float("inf")))
    assert training.model.weight.item() == 0.75
    assert training.gradient_scaler is not None
    assert training.gradient_scaler.get_scale() == 2.0


def test_under_a_scaled_loss_gradients_are_clipped_in_true_units() -> None:
    training = one_weight(max_grad_norm=0.5)
    training.step(torch.tensor(0.25))
    assert training.model.weight.item() == 0.75
    training.step(torch.tensor(8.0))
    assert training.model.weight.item() == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda p: torch.optim.RMSprop(p), "Adagrad, Adam, AdamW, SGD have a fused step"),
        (lambda p: torch.optim.SGD(p, lr=0.1, differentiable=True), "differentiable"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "dampens the first gradient"),
    ],
)
def test_an_optimizer_without_a_fused_step_is_refused(build: Any, reason: str) -> None:
    with pytest.raises(MethodRefusedError, match=reason):
        apply_settings(training_of("convnet", build_optimizer=build), [FUSED])


def test_a_torch_without_the_kernel_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> None:
        raise NotImplementedError("no kernel for this backend\nand a long explanation")

    monkeypatch.setattr(torch, "_fused_sgd_", missing)
    training = training_of("convnet", build_optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    with pytest.raises(MethodRefusedError, match=r"no fused SGD .*no kernel for this backend$"):
        apply_settings(training, [FUSED])


@pytest.mark.parametrize("name", ["AdamW", "Adagrad"])
def test_an_optimizer_that_has_stepped_is_refused(name: str) -> None:
    training = training_of("convnet", build_optimizer=getattr(torch.optim, name))
    training.step(images(2))
    with pytest.raises(MethodRefusedError, match="already stepped"):
        apply_settings(training, [FUSED])


def test_hooks_around_a_step_are_run_around_the_steps_of_the_replacement() -> None:
    """Trap: an average of the weights that a hook keeps would silently stay as it began."""
    seen = []

    def build(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters)
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        return optimizer

    training = training_of("convnet", build_optimizer=build)
    apply_settings(training, [FUSED])
    training.step(images(2))
    assert seen == ["before", "after"]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.125, momentum=0.5, weight_decay=0.25)


def test_momentum_begins_at_nothing_although_the_first_gradients_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: torch begins it in memory that holds anything, and writes it only where no gradient overflowed."""
    anything = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **more: anything(*given, **more).fill_(7.0))
    moved = []
    for settings in ([], [FUSED]):
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        training = Training(
            model, compute_loss=lambda model, batch: (model.weight * batch).sum(), build_optimizer=momentum
        )
        apply_settings(training, settings)
        training.gradient_scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for batch in (float("inf"), 1.0, 2.0):
            training.step(torch.tensor(batch))
        moved.append(training.model.weight.item())
    assert moved[1] == pytest.approx(moved[0])


@pytest.mark.parametrize(
    "more",
    [[], [use("pure_bf16", rounding="nearest")], [use("half_weights", rounding="nearest")]],
    ids=["alone", "with pure_bf16", "with half_weights"],
)
def test_a_parameter_may_get_its_first_gradient_after_others(more: list[Any]) -> None:
    """The trap: the head of another task, or an expert that was not chosen, ended training in a TypeError."""
    weights = []
    for settings in (more, [*more, FUSED]):
        torch.manual_seed(0)
        model = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in ("first", "second")})

        def loss(model: Any, batch: tuple[Sequence[str], torch.Tensor]) -> torch.Tensor:
            return sum((model[name](batch[1]).square().mean() for name in batch[0]), torch.zeros(()))

        training = Training(model, compute_loss=loss, build_optimizer=momentum)
        apply_settings(training, settings)
        inputs = torch.ones(2, 4, dtype=next(model.parameters()).dtype)
        for names in (["first"], ["first", "second"], ["second"]):
            training.backward(training.forward((names, inputs)))
            training.optimizer_step()
        weights.append(training.state_dict()["model"])
    for name, weight in weights[0].items():
        assert torch.allclose(weights[1][name], weight, rtol=1e-2 if more else 1e-5), name


def test_a_hook_before_the_step_sees_true_gradients_under_a_scaled_loss() -> None:
    """The trap: a hook that clips took the loss scale for a norm, and next to nothing was left of the gradient."""
    training = one_weight()
    seen = []
    training.optimizer.register_step_pre_hook(lambda *_: seen.append(training.model.weight.grad.item()))  # type: ignore[union-attr]
    training.step(torch.tensor(0.25))
    assert (seen, training.model.weight.item()) == ([0.25], 0.75)


def test_half_weights_refuse_such_a_hook() -> None:
    def build(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters)
        optimizer.register_step_pre_hook(lambda *_: None)
        return optimizer

    with pytest.raises(MethodRefusedError, match="still scaled; clip with max_grad_norm"):
        apply_settings(training_of("convnet", build_optimizer=build), [use("half_weights", rounding="nearest")])


def test_a_parameter_with_gaps_in_memory_is_refused() -> None:
    """The trap: the usual change to one input channel, without a copy; the kernel takes what lies next in memory."""

    def build(weight: torch.Tensor) -> Training:
        model = nn.Conv2d(3, 4, 3)
        model.weight = nn.Parameter(weight)
        return Training(model, compute_loss=lambda model, batch: model(batch).square().mean())

    whole = torch.randn(4, 3, 3, 3)
    with pytest.raises(MethodRefusedError, match=r"1 of 2 do not.*weight.clone"):
        apply_settings(build(whole[:, :1]), [FUSED])
    for fine in (whole[:, :1].clone(), whole.transpose(0, 1), whole.to(memory_format=torch.channels_last)):
        apply_settings(build(fine), [FUSED])


MANY_WAYS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
}
anyhow = pytest.mark.parametrize("build", MANY_WAYS.values(), ids=MANY_WAYS)
IN_CHANNELS = [use("channels_last"), FUSED]


def after(training: Training, steps: range) -> dict[str, torch.Tensor]:
    for step in steps:
        torch.manual_seed(step)
        training.step(images(4, seed=step))
    return dict(training.state_dict()["model"])


@anyhow
def test_a_plain_training_goes_on_from_its_state(build: Any) -> None:
    """The trap: saved as fused, and in another layout, it made the plain optimizer update elements with others'."""
    fused, plain = (training_of("convnet", build_optimizer=build, dropout=0.0) for _ in range(2))
    apply_settings(fused, IN_CHANNELS)
    after(fused, range(2))
    state = copy.deepcopy(fused.state_dict())
    plain.model.load_state_dict(state["model"])
    optimizer = build(list(plain.model.parameters()))
    optimizer.load_state_dict(state["optimizer"])
    assert [group["fused"] for group in optimizer.param_groups] == [None]
    plain.optimizer = optimizer
    assert relative_error(after(plain, range(2, 4)), after(fused, range(2, 4))) < 1e-4


@anyhow
@pytest.mark.parametrize("directly", [False, True], ids=["by the training", "by its optimizer"])
def test_it_goes_on_from_the_state_of_a_plain_training_and_stays_fused(build: Any, directly: bool) -> None:
    """The trap: torch takes the saved choice, so that the measured speed was gone without a word."""
    fused, plain, whole = (training_of("convnet", build_optimizer=build, dropout=0.0) for _ in range(3))
    after(plain, range(2))
    state = plain.state_dict()
    apply_settings(fused, IN_CHANNELS)
    if directly:
        fused.model.load_state_dict(state["model"])
        fused.optimizer.load_state_dict(state["optimizer"])
    else:
        fused.load_state_dict(state)
    assert all(group["fused"] and not group["foreach"] for group in fused.optimizer.param_groups)
    assert relative_error(after(fused, range(2, 4)), after(whole, range(4))) < 1e-4
