"""torchao's Adams: the workload's own groups and options, a state of the promised size, and learning rates that work.

Steps run without compiled kernels, but for one test: compiling takes seconds for every shape.
"""

from __future__ import annotations

import contextlib
import copy
import io
import shutil
import sys
from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.errors import MethodRefusedError, PolicyError
from advisor.methods.catalogue import get_method
from advisor.methods.compose import apply_settings, judge
from advisor.methods.optimizers._adam_low_bit import (
    kernels_are_compiled as compiles_here,  # As it is, before it is patched.
)
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.methods.tiny import cpu, facts_of, gpu, images, import_torchao, training_of, uncompiled_optimizers

STATES = ("8bit", "4bit", "fp8")


@pytest.fixture(autouse=True)
def _uncompiled(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    import_torchao()
    with contextlib.nullcontext() if "slow" in request.keywords else uncompiled_optimizers():
        yield


def low_bit(state: str = "8bit") -> MethodSetting:
    return use("adam_low_bit", state=state)


def matrix_training(build_optimizer: Any, settings: list[MethodSetting], value: float = 1.0) -> Training:
    """A matrix of 64 x 128 numbers, large enough for whole blocks, with gradients that all differ."""
    model = nn.Linear(128, 64, bias=False)
    nn.init.constant_(model.weight, value)
    training = Training(
        model,
        compute_loss=lambda model, batch: (model.weight * batch).sum(),
        build_optimizer=build_optimizer,
    )
    apply_settings(training, settings)
    return training


def gradient(seed: int = 0) -> torch.Tensor:
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("state", "bytes_per_moment"),
    [
        ("8bit", 8192 + 4 * 8192 // 256 + 4 * 256),  # codes, scales of blocks, the table of values
        ("4bit", 8192 // 2 + 4 * 8192 // 128 + 4 * 16),
        ("fp8", 8192 + 4 * 8192 // 256),
    ],
)
def test_the_state_takes_what_its_format_takes(state: str, bytes_per_moment: int) -> None:
    from advisor.measure.memory.meter import optimizer_state_bytes

    training = matrix_training(torch.optim.AdamW, [low_bit(state)])
    training.step(gradient())
    assert optimizer_state_bytes(training) == 2 * bytes_per_moment + 4  # and the number of steps


def test_groups_and_options_are_translated() -> None:
    def build(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": parameters[:2], "lr": 0.5, "name": "slow"},
            {"params": parameters[2:], "weight_decay": 0.25, "betas": (0.5, torch.tensor(0.75))},
        ]
        return torch.optim.AdamW(groups, lr=torch.tensor(0.125), eps=1e-4)

    training = training_of("convnet", build_optimizer=build)
    apply_settings(training, [low_bit()])
    first, second = training.optimizer.param_groups
    assert type(training.optimizer).__name__ == "AdamW8bit"
    assert (float(first["lr"]), first["eps"], first["weight_decay"], first["name"]) == (0.5, 1e-4, 0.01, "slow")
    assert (float(second["lr"]), second["weight_decay"], second["betas"]) == (0.125, 0.25, (0.5, 0.75))
    assert not set(first) & {"maximize", "foreach", "fused", "decoupled_weight_decay"}
    training.step(images(2))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ],
    ids=["coupled", "decoupled", "AdamW"],
)
def test_weights_decay_as_with_the_optimizer_that_is_replaced(state: str, build: Any) -> None:
    """The first step is not quantized yet. Weights of 30 decay by enough to tell one kind of decay from the other."""
    plain, changed = matrix_training(build, [], 30.0), matrix_training(build, [low_bit(state)], 30.0)
    for training in (plain, changed):
        training.step(gradient())
    torch.testing.assert_close(changed.model.weight, plain.model.weight, rtol=0.0, atol=1e-5)


def test_a_scheduler_and_an_assignment_steer_it() -> None:
    """Trap: torchao's step raises when a learning rate is assigned that is no tensor."""
    training = matrix_training(lambda p: torch.optim.AdamW(p, lr=0.5, weight_decay=0.0), [low_bit()])
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=1, gamma=0.5)
    moved = []
    for step in range(3):
        if step == 2:
            training.optimizer.param_groups[0]["lr"] = 0.125
        before = training.model.weight.detach().clone()
        training.step(torch.ones(64, 128))
        moved.append(float((before - training.model.weight.detach()).mean()))
        scheduler.step()
    assert moved == pytest.approx([0.5, 0.25, 0.125], rel=0.05)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", ["copied", "saved"])
def test_training_goes_on_from_a_state(state: str, way: str) -> None:
    first, second = (matrix_training(torch.optim.AdamW, [low_bit(state)]) for _ in range(2))
    first.step(gradient(0))
    if way == "copied":
        kept = copy.deepcopy(first.state_dict())
    else:
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        kept = torch.load(file)
    first.step(gradient(1))  # What was kept must not be what goes on.
    second.load_state_dict(kept)
    second.step(gradient(1))
    assert torch.equal(first.model.weight, second.model.weight)


def test_states_in_few_bits_and_others_are_not_taken_for_each_other() -> None:
    """The trap: both loaded; one kept its float32 moments, the other failed in its next step."""
    plain, low = matrix_training(torch.optim.AdamW, []), matrix_training(torch.optim.AdamW, [low_bit("8bit")])
    for training in (plain, low):
        training.step(gradient(0))
    with pytest.raises(PolicyError, match=r"in the format of the parameters, and this training's .* in few bits"):
        low.load_state_dict(plain.state_dict())
    with pytest.raises(PolicyError, match=r"in few bits, and this training's .* in the format of the parameters"):
        plain.load_state_dict(low.state_dict())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "torch.optim.sgd.SGD"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.AdamW(p, maximize=True), "maximize"),
        (lambda p: torch.optim.AdamW(p, differentiable=True), "differentiable"),
    ],
)
def test_an_optimizer_without_an_equal_is_refused(build: Any, reason: str) -> None:
    with pytest.raises(MethodRefusedError, match=reason):
        apply_settings(training_of("convnet", build_optimizer=build), [low_bit()])


def test_an_optimizer_that_has_stepped_is_refused() -> None:
    training = training_of("convnet")
    training.step(images(2))
    with pytest.raises(MethodRefusedError, match="already stepped"):
        apply_settings(training, [low_bit()])


@pytest.mark.parametrize("state", STATES)
def test_a_model_without_whole_blocks_is_told_that_nothing_changed(state: str) -> None:
    training = Training(nn.Linear(4097, 1))
    apply_settings(training, [low_bit(state)])
    assert "changed nothing" in training.notes[0]


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of("convnet", compiler="torch.compile needs a C++ compiler, and none was found")
    assert "C++ compiler" in judge([low_bit()], facts=facts, hardware=cpu()).reason
    monkeypatch.setattr("advisor.methods.optimizers._adam_low_bit.kernels_are_compiled", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MethodRefusedError, match=r"C\+\+ compiler"):
        apply_settings(training_of("convnet"), [low_bit()])


def test_8_bit_floats_are_refused_on_gpus_without_them() -> None:
    method = get_method("adam_low_bit")
    assert "8.9" in method.applicable({"state": "fp8"}, None, gpu((8, 0))).reason
    assert method.applicable({"state": "8bit"}, None, gpu((8, 0))).applicable
    assert method.applicable({"state": "fp8"}, None, gpu((9, 0))).applicable


def test_a_library_that_cannot_be_loaded_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(MethodRefusedError, match=r"torchao\.optim\.AdamW8bit cannot be imported"):
        apply_settings(training_of("convnet"), [low_bit()])


def test_tensors_without_data_need_no_kernels() -> None:
    assert compiles_here()
    with FakeTensorMode():
        assert not compiles_here()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_kernels_do_what_uncompiled_steps_do() -> None:
    compiled, eager = (matrix_training(torch.optim.AdamW, [low_bit()]) for _ in range(2))
    compiled.step(gradient(0))
    compiled.step(gradient(1))
    with uncompiled_optimizers():
        eager.step(gradient(0))
        eager.step(gradient(1))
    torch.testing.assert_close(compiled.model.weight, eager.model.weight, rtol=0.0, atol=1e-5)


def test_groups_that_decay_in_different_ways_are_refused() -> None:
    """Trap: torchao decides it by the class, so that the second group would decay as the first does."""

    def build(parameters: Any) -> torch.optim.Optimizer:
        apart, coupled = (
            {"params": [p], "decoupled_weight_decay": first}
            for p, first in zip(parameters, (True, False), strict=False)
        )
        return torch.optim.Adam([apart, coupled], weight_decay=0.1)

    training = training_of("convnet", build_optimizer=build)
    with pytest.raises(MethodRefusedError, match="differ in decoupled_weight_decay"):
        apply_settings(training, [low_bit()])


def test_with_short_weights_small_moments_keep_their_format_when_they_are_loaded() -> None:
    """Trap: torch casts a loaded state to the format of the weights."""
    rounded = use("pure_bf16", rounding="nearest")
    first, second = training_of("convnet"), training_of("convnet")
    for training in (first, second):
        apply_settings(training, [low_bit(), rounded])
    first.step(images(4))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for one, other in zip(first.optimizer.state.values(), second.optimizer.state.values(), strict=True):
        assert type(one["exp_avg"]) is type(other["exp_avg"])
        if type(one["exp_avg"]) is torch.Tensor:
            assert other["exp_avg"].dtype == torch.float32
            assert torch.equal(one["exp_avg"], other["exp_avg"])
