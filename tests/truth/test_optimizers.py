"""What the user's build_optimizer makes goes on working under every method that replaces or splits the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy

STEPS = 5
METHODS = [
    use("fused_optimizer"),
    use("optimizer_in_backward"),
    use("pure_bf16", rounding="stochastic"),
    use("half_weights", rounding="nearest"),
    use("adafactor"),
]
Build = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


def trained(build: Build, method: MethodSetting | None) -> tuple[Any, list[torch.Tensor]]:
    """The training after some steps, and its parameters."""
    methods = () if method is None else (method,)
    training = apply_policy(
        Policy(methods=methods, micro_batch=8),
        model(),
        device="cpu",
        build_optimizer=build,
        compute_loss=lambda model, batch: model(batch).float().square().mean(),
    )
    for step in range(STEPS):
        torch.manual_seed(step)
        training.step(torch.randn(8, 8))
    return training, [parameter.detach().float() for parameter in training.model.parameters()]


@pytest.mark.parametrize("method", [None, *METHODS], ids=str)
def test_a_scheduler_moves_what_is_trained(method: MethodSetting | None) -> None:
    """Trap: a fused optimizer kept the learning rate that it began with."""
    schedulers: list[Any] = []

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step))
        optimizer.register_step_post_hook(lambda *_: schedulers[0].step())
        return optimizer

    training, parameters = trained(build, method)
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.5**STEPS)
    if method is not None and method.name in ("fused_optimizer", "optimizer_in_backward"):
        schedulers.clear()
        _, plain = trained(build, None)
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(parameters, plain, strict=True))


@pytest.mark.parametrize("method", [None, *METHODS], ids=str)
def test_a_hook_after_the_step_runs_once_in_each(method: MethodSetting | None) -> None:
    calls: list[torch.optim.Optimizer] = []

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        optimizer.register_step_post_hook(lambda optimizer, *_: calls.append(optimizer))
        return optimizer

    trained(build, method)
    assert len(calls) == STEPS


@pytest.mark.parametrize("method", [None, *METHODS], ids=str)
def test_a_hook_before_the_step_sees_all_gradients_or_the_method_is_refused(method: MethodSetting | None) -> None:
    """Trap: gradients were clipped parameter by parameter."""
    seen: list[int] = []

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        held = list(parameters)
        optimizer = torch.optim.AdamW(held, lr=1e-2)
        optimizer.register_step_pre_hook(lambda *_: seen.append(sum(one.grad is not None for one in held)))
        return optimizer

    if method is not None and method.name == "optimizer_in_backward":
        with pytest.raises(MethodRefusedError, match="all gradients at once"):
            trained(build, method)
        return
    if method is not None and method.name == "half_weights":
        with pytest.raises(MethodRefusedError, match="still scaled"):
            trained(build, method)
        return
    trained(build, method)
    assert seen == [6] * STEPS


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_step_that_was_given_to_the_optimizer_is_not_lost(method: MethodSetting) -> None:
    """Trap: the step that clipped was left behind with the object that was replaced."""

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        held = list(parameters)
        optimizer = torch.optim.AdamW(held, lr=1e-2)
        step = optimizer.step

        def clipped(closure: Any = None) -> Any:
            torch.nn.utils.clip_grad_norm_(held, 0.1)
            return step(closure)

        optimizer.step = clipped  # type: ignore[method-assign]
        return optimizer

    with pytest.raises(MethodRefusedError, match=r"one with a step of its own, torch\.optim"):
        trained(build, method)


@pytest.mark.parametrize("method", [None, *METHODS], ids=str)
def test_an_optimizer_that_somebody_holds_is_the_one_that_trains(method: MethodSetting | None) -> None:
    held: list[torch.optim.Optimizer] = []

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        held.append(torch.optim.SGD(parameters, lr=1e-2) if method is None else torch.optim.AdamW(parameters, lr=1e-2))
        return held[0]

    training, _ = trained(build, method)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    for group in held[0].param_groups:
        group["lr"] = 0.0
    training.step(torch.randn(8, 8))
    assert all(torch.equal(one, other) for one, other in zip(training.model.parameters(), before, strict=True))


@pytest.mark.parametrize("method", [None, *METHODS], ids=str)
def test_a_scheduler_goes_on_after_a_training_is_resumed(method: MethodSetting | None) -> None:
    """Trap: loading gave the optimizer other groups than those that the scheduler moved."""
    schedulers: list[Any] = []

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step))
        return optimizer

    training, _ = trained(build, method)
    for _ in range(2):
        schedulers[-1].step()
    state, schedule = training.state_dict(), schedulers[-1].state_dict()
    resumed, _ = trained(build, method)
    resumed.load_state_dict(state)
    schedulers[-1].load_state_dict(schedule)
    schedulers[-1].step()
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.5**3)


def test_a_scheduler_may_move_what_the_replacement_has_no_use_for() -> None:
    schedulers: list[Any] = []

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        schedulers.append(torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20))
        return optimizer

    trained(build, use("adafactor"))
    schedulers[0].step()
