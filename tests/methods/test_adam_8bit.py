"""8-bit Adam: the workload's own groups and options in another optimizer, or a refusal."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.methods.tiny import cpu, facts_of, images, import_bitsandbytes, training_of

ADAM_8BIT = use("adam_8bit")


@pytest.fixture(autouse=True)
def _bitsandbytes() -> None:
    import_bitsandbytes()


def test_groups_and_options_are_translated() -> None:
    def build(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": parameters[:2], "lr": 0.5, "name": "slow"},
            {"params": parameters[2:], "weight_decay": 0.25, "betas": (0.5, 0.75)},
        ]
        return torch.optim.AdamW(groups, lr=0.125, eps=1e-4)

    training = training_of("convnet", build_optimizer=build)
    apply_settings(training, [ADAM_8BIT])
    first, second = training.optimizer.param_groups
    assert type(training.optimizer).__name__ == "AdamW8bit"
    assert (first["lr"], first["eps"], first["weight_decay"], first["name"]) == (0.5, 1e-4, 0.01, "slow")
    assert (second["lr"], second["weight_decay"], second["betas"]) == (0.125, 0.25, (0.5, 0.75))
    assert len(first["params"]) == 2
    assert not set(first) & {"amsgrad", "foreach", "fused", "decoupled_weight_decay"}
    training.step(images(2))


def test_a_scheduler_steers_it() -> None:
    training = training_of("convnet")
    apply_settings(training, [ADAM_8BIT])
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=1, gamma=0.5)
    training.step(images(2))
    scheduler.step()
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "torch.optim.sgd.SGD"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.AdamW(p, maximize=True), "maximize"),
        (lambda p: torch.optim.AdamW(p, capturable=True), "capturable"),
        (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)), "must be a number, but the optimizer's is a tensor"),
        (lambda p: torch.optim.AdamW([{"params": p, "lr": torch.tensor(0.1)}]), "must be a number"),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "weight_decay=0"),
        (lambda p: torch.optim.Adam([{"params": p[:1]}, {"params": p[1:], "weight_decay": 0.1}]), "weight_decay=0"),
    ],
)
def test_an_optimizer_without_an_equal_in_8_bits_is_refused(build: Any, reason: str) -> None:
    with pytest.raises(MethodRefusedError, match=reason):
        apply_settings(training_of("convnet", build_optimizer=build), [ADAM_8BIT])


@pytest.mark.parametrize(
    "build",
    [lambda p: torch.optim.Adam(p), lambda p: torch.optim.Adam(p, weight_decay=0.1, decoupled_weight_decay=True)],
)
def test_adam_without_coupled_decay_is_replaced(build: Any) -> None:
    training = training_of("convnet", build_optimizer=build)
    apply_settings(training, [ADAM_8BIT])
    assert type(training.optimizer).__name__ == "Adam8bit"


def test_a_learning_rate_in_a_tensor_is_refused_before_any_trial() -> None:
    options = {"lr": "a tensor", "amsgrad": False, "maximize": False, "weight_decay": 0.01}  # As a probe notes it.
    facts = facts_of("convnet", optimizer_options=options)
    assert "give a number" in judge([ADAM_8BIT], facts=facts, hardware=cpu()).reason
    assert judge(
        [ADAM_8BIT], facts=facts_of("convnet", optimizer_options=options | {"lr": 0.1}), hardware=cpu()
    ).applicable


def test_an_optimizer_that_has_stepped_is_refused() -> None:
    training = training_of("convnet")
    training.step(images(2))
    with pytest.raises(MethodRefusedError, match="already stepped"):
        apply_settings(training, [ADAM_8BIT])


def test_a_model_of_small_parameters_is_told_that_nothing_changed() -> None:
    training = Training(nn.Linear(8, 8))
    apply_settings(training, [ADAM_8BIT])
    assert "changed nothing" in training.notes[0]


def test_a_library_that_cannot_be_loaded_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def broken(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "bitsandbytes":
            raise OSError("libcuda.so: cannot open")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(MethodRefusedError, match=r"cannot be imported: libcuda\.so"):
        apply_settings(training_of("convnet"), [ADAM_8BIT])
