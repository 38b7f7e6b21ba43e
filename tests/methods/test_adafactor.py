"""Adafactor in Adam's place: torch's own, over the workload's groups, with its learning rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.measure.memory.meter import optimizer_state_bytes
from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.methods.tiny import images, training_of

ADAFACTOR = use("adafactor")


def test_it_trains_as_torchs_adafactor_with_the_same_learning_rate_and_decay() -> None:
    replaced = training_of("convnet", build_optimizer=lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1))
    apply_settings(replaced, [ADAFACTOR])
    direct = training_of("convnet", build_optimizer=lambda p: torch.optim.Adafactor(p, lr=0.02, weight_decay=0.1))
    for training in (replaced, direct):
        scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=1, gamma=0.5)
        for step in range(3):
            torch.manual_seed(step)
            training.step(images(4, seed=step))
            scheduler.step()
    left, right = replaced.state_dict()["model"], direct.state_dict()["model"]
    assert all(torch.equal(left[name], right[name]) for name in right)


def test_groups_are_kept_and_options_that_mean_something_else_are_not() -> None:
    def build(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": parameters[:2], "lr": 0.5, "name": "slow"},
            {"params": parameters[2:], "weight_decay": 0.25},
        ]
        return torch.optim.AdamW(groups, lr=0.125, eps=1e-4, betas=(0.5, 0.5), maximize=True)

    training = training_of("convnet", build_optimizer=build)
    apply_settings(training, [ADAFACTOR])
    first, second = training.optimizer.param_groups
    assert (first["lr"], first["weight_decay"], first["maximize"], first["name"]) == (0.5, 0.01, True, "slow")
    assert (second["lr"], second["weight_decay"], len(second["params"])) == (0.125, 0.25, 16)
    assert first["eps"] == torch.optim.Adafactor([nn.Parameter(torch.ones(1))]).defaults["eps"]
    assert not set(first) & {"betas", "amsgrad", "fused", "capturable"}


def test_a_matrix_keeps_a_number_per_row_and_one_per_column() -> None:
    training = Training(nn.Linear(48, 32, bias=False), compute_loss=lambda model, batch: model(batch).square().mean())
    apply_settings(training, [ADAFACTOR])
    training.step(torch.ones(2, 48))
    assert optimizer_state_bytes(training) == 4 * (48 + 32) + 4  # and the number of steps


def test_a_model_without_matrices_is_told_what_is_left_to_save() -> None:
    training = Training(nn.BatchNorm1d(4), compute_loss=lambda model, batch: model(batch).sum())
    apply_settings(training, [ADAFACTOR])
    assert "factored nothing" in training.notes[0]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "torch.optim.sgd.SGD"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "weight_decay=0"),
    ],
)
def test_an_optimizer_that_it_would_not_stand_in_for_is_refused(build: Any, reason: str) -> None:
    with pytest.raises(MethodRefusedError, match=reason):
        apply_settings(training_of("convnet", build_optimizer=build), [ADAFACTOR])


def test_an_optimizer_that_has_stepped_is_refused() -> None:
    training = training_of("convnet")
    training.step(images(2))
    with pytest.raises(MethodRefusedError, match="already stepped"):
        apply_settings(training, [ADAFACTOR])
