"""bfloat16 weights: what stays in float32, what rounding keeps, and how much exists in float32 at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge
from advisor.methods.formats import _float32_updates as float32_updates
from advisor.methods.formats.pure_bf16 import PureBf16
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.measure.tiny import meter
from tests.methods.tiny import adamw, cpu, facts_of, gpu, images, text, training_of

STOCHASTIC = use("pure_bf16", rounding="stochastic")
NEAREST = use("pure_bf16", rounding="nearest")


class Weights(nn.Module):
    """Parameters that each get the same gradient: one."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(size) for size in sizes)

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return sum((weight.float().sum() for weight in self.weights), start=torch.zeros(())) * factor.sum()


def sgd(rate: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


ONE = (torch.ones(1),)


@pytest.mark.parametrize(("setting", "kept"), [(STOCHASTIC, True), (NEAREST, False)])
def test_a_thousand_small_updates_are_kept_on_the_average_or_lost(setting: Any, kept: bool) -> None:
    """Trap: 1 - 1/1000 is nearest to 1 in bfloat16, so that nothing moves however often it is tried."""
    training = Training(Weights(2000), build_optimizer=sgd(2.0**-12))
    apply_settings(training, [setting])
    for _ in range(1000):
        training.step(ONE)
    moved = 1.0 - float(training.model.weights[0].detach().double().mean())  # type: ignore[index,union-attr]
    assert moved == (pytest.approx(1000 * 2.0**-12, rel=0.02) if kept else 0.0)


def test_the_decay_of_a_moment_is_kept_on_the_average() -> None:
    """Trap: 0.999 of a number is nearest to the number itself in bfloat16, so that Adam's second moment only grows."""
    held = {}
    for setting in (STOCHASTIC, NEAREST):
        training = Training(Weights(2000), build_optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3))
        apply_settings(training, [setting])
        for step in range(201):
            training.step((torch.full((1,), 1.0 if step == 0 else 1e-6),))
        held[setting.label] = float(_state(training)[0]["exp_avg_sq"].double().mean())
    assert held[STOCHASTIC.label] == pytest.approx(1e-3 * 0.999**200, rel=0.02)
    assert held[NEAREST.label] == pytest.approx(1e-3, rel=0.02)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
        lambda p: torch.optim.NAdam(p, lr=1e-3),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.RMSprop(p, lr=1e-3),
        lambda p: torch.optim.Adagrad(p, lr=1e-3, initial_accumulator_value=0.1),
    ],
    ids=["SGD", "AdamW", "NAdam", "Adafactor", "RMSprop", "Adagrad, which makes its state at once"],
)
def test_any_optimizer_of_torch_keeps_its_state_in_bfloat16_and_goes_on_from_it(build: Any) -> None:
    first, second = training_of("convnet", build_optimizer=build), training_of("convnet", build_optimizer=build)
    for training in (first, second):
        apply_settings(training, [STOCHASTIC])
    first.step(images(2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in range(2):
        for training in (first, second):
            torch.manual_seed(step)
            training.step(images(2, seed=step))
    tensors = [value for state in _state(first) for value in state.values() if value.dim()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    for name, value in first.state_dict()["model"].items():
        assert torch.equal(value, second.state_dict()["model"][name]), name
    for one, other in zip(_state(first), _state(second), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_state_of_a_plain_optimizer_is_taken_and_given() -> None:
    plain, short = training_of("convnet"), training_of("convnet")
    apply_settings(short, [STOCHASTIC])
    plain.step(images(2))
    short.load_state_dict(plain.state_dict())
    short.step(images(2))
    plain.load_state_dict(short.state_dict())
    assert {value.dtype for state in _state(plain) for value in state.values()} == {torch.float32}
    plain.step(images(2))


def test_only_a_part_of_the_parameters_exists_in_float32_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float32_updates, "_AT_ONCE", 100)
    training = Training(Weights(40, 50, 20, 300, 10), build_optimizer=sgd(0.5))
    seen: list[list[int]] = []
    plain = torch.optim.SGD.step

    def watched(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        seen.append([parameter.numel() for parameter in self.param_groups[0]["params"]])
        assert all(parameter.dtype == torch.float32 for parameter in self.param_groups[0]["params"])
        return plain(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    apply_settings(training, [STOCHASTIC])
    training.step(ONE)
    assert seen == [[40, 50], [20], [300], [10]]
    assert all(bool((weight == 0.5).all()) for weight in training.model.weights)  # type: ignore[union-attr]


def test_no_more_than_a_quarter_of_a_small_model_exists_in_float32_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(Weights(*[10] * 20), build_optimizer=sgd(0.5))
    seen: list[int] = []
    plain = torch.optim.SGD.step

    def watched(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        seen.append(len(self.param_groups[0]["params"]))
        return plain(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    apply_settings(training, [STOCHASTIC])
    training.step(ONE)
    assert seen == [5, 5, 5, 5]


def test_a_step_needs_half_the_memory_and_a_part_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes for each parameter: 16 in float32; 8 in bfloat16, and beside them what is worked on."""
    monkeypatch.setattr(float32_updates, "_AT_ONCE", 2**12)
    peaks = []
    for settings in ([], [STOCHASTIC]):
        measuring = meter()  # What exists now is not counted.
        training = Training(Weights(*[2**12] * 32), build_optimizer=lambda p: torch.optim.AdamW(p, foreach=False))
        apply_settings(training, settings)
        with measuring, measuring.guarding(ONE):
            training.step(ONE)
            _, memory = measuring.measured_step(training, ONE)
        peaks.append(memory.peak_bytes / (32 * 2**12))
    assert peaks[0] == pytest.approx(16.0, rel=0.1)
    assert peaks[1] == pytest.approx(8.0, rel=0.1)


def test_hooks_and_schedulers_see_one_step_of_the_parameters_themselves() -> None:
    training = training_of("convnet")
    apply_settings(training, [STOCHASTIC])
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=1, gamma=0.5)
    seen: list[Any] = []
    training.optimizer.register_step_pre_hook(lambda optimizer, *_: seen.append(optimizer.param_groups[0]["params"]))
    training.step(images(2))
    scheduler.step()
    assert len(seen) == 1
    assert [id(p) for p in seen[0]] == [id(p) for p in training.model.parameters()]
    assert training.optimizer.param_groups[0]["lr"] == 5e-4


def test_normalizations_with_running_statistics_and_losses_stay_in_float32() -> None:
    training = training_of("convnet")
    apply_settings(training, [STOCHASTIC])
    loss = training.step(images(2))
    assert loss.dtype == torch.float32
    dtypes = {name.split(".")[-2]: p.dtype for name, p in training.model.named_parameters()}
    assert dtypes == {"conv": torch.bfloat16, "norm": torch.float32, "head": torch.bfloat16}
    state = training.state_dict()["model"]
    assert {state[name].dtype for name in state if "running" in name} == {torch.float32}


def test_running_statistics_are_those_of_a_training_in_float32() -> None:
    """Trap: in bfloat16 they would stop to move once a batch changes them by less than 1/256."""
    plain, short = training_of("convnet"), training_of("convnet")
    apply_settings(short, [STOCHASTIC])
    for training in (plain, short):
        torch.manual_seed(0)
        for step in range(8):
            training.forward(images(2, seed=step))
    for name, value in plain.state_dict()["model"].items():
        if "running_var" in name:
            assert torch.allclose(short.state_dict()["model"][name], value, rtol=0.03)


class WithTables(nn.Module):
    """A position table that is part of the state, and frequencies that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("positions", torch.randn(4))
        self.register_buffer("frequencies", torch.randn(4), persistent=False)

    def forward(self, inputs: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        assert inputs.dtype == scale.dtype == torch.bfloat16
        return nn.functional.mse_loss(self.layer(inputs * scale + self.positions), torch.zeros_like(inputs))


def test_floats_are_cast_where_the_model_is_called_and_only_saved_buffers_are_shortened() -> None:
    training = Training(WithTables(), build_optimizer=adamw)
    apply_settings(training, [STOCHASTIC])
    training.step({"inputs": torch.randn(2, 4), "scale": torch.ones(1)})
    assert training.model.positions.dtype == torch.bfloat16
    assert training.model.frequencies.dtype == torch.float32


def test_tied_weights_stay_tied() -> None:
    training = training_of("gpt2")
    apply_settings(training, [STOCHASTIC])
    training.step(text(2))
    model: Any = training.model
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.dtype == torch.bfloat16


def test_gradients_are_clipped_by_a_norm_in_float32() -> None:
    plain, short = (training_of("convnet", max_grad_norm=None) for _ in range(2))
    apply_settings(short, [STOCHASTIC])
    norms = []
    for training in (plain, short):
        torch.manual_seed(0)
        training.backward(training.forward(images(2)))
        norms.append(training.clip_grad_norm(0.01))
    assert norms[1].dtype == torch.float32
    assert float(norms[1]) == pytest.approx(float(norms[0]), rel=0.02)
    gradients = [p.grad.double() for p in short.model.parameters() if p.grad is not None]
    assert float(sum(g.square().sum() for g in gradients) ** 0.5) == pytest.approx(0.01, rel=0.01)


def test_a_model_that_came_in_bfloat16_is_told_what_changed() -> None:
    training = training_of("convnet")
    training.model.to(torch.bfloat16)
    apply_settings(training, [STOCHASTIC])
    assert "came in bfloat16; what it changed is" in training.notes[0]
    assert training.step(images(2)).dtype == torch.float32


def test_an_optimizer_that_needs_all_parameters_at_once_is_refused_before_a_trial_and_in_it() -> None:
    facts = facts_of("convnet", optimizer_class="torch.optim.lbfgs.LBFGS")
    verdict = judge([STOCHASTIC], facts=facts, hardware=cpu())
    assert "parameters one by one" in verdict.reason
    training = training_of("convnet", build_optimizer=torch.optim.LBFGS)
    with pytest.raises(MethodRefusedError, match="parameters one by one"):
        apply_settings(training, [STOCHASTIC])


def test_a_gpu_without_bfloat16_is_refused() -> None:
    verdict = PureBf16().applicable({"rounding": "stochastic"}, None, gpu((7, 5)))
    assert "needs compute capability 8.0" in verdict.reason
    assert PureBf16().applicable({"rounding": "stochastic"}, None, gpu((8, 0))).applicable


def test_two_ways_to_decide_the_format_are_refused_together() -> None:
    for other in (use("precision", dtype="bf16"), use("half_weights", rounding="nearest")):
        with pytest.raises(MethodRefusedError, match="both decide the float format"):
            apply_settings(training_of("convnet"), [STOCHASTIC, other])


def _state(training: Training) -> list[dict[str, torch.Tensor]]:
    """The state of each parameter, in their order."""
    held = training.optimizer.state
    return [held[p] for group in training.optimizer.param_groups for p in group["params"]]
