"""Gradient clipping with every method about the optimizer: as without it, or refused."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.methods.base import Stage
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import apply_settings, fidelity_of, settings_of
from advisor.methods.setting import MethodSetting
from tests.contract.expected import expected
from tests.contract.observe import Observation, observe, relative_error
from tests.contract.promises import update_tolerance
from tests.methods.tiny import import_bitsandbytes, text, training_of, uncompiled_optimizers

REFUSED = {"optimizer_in_backward": "needs all gradients at once"}

SETTINGS = [
    setting
    for method in CATALOGUE
    if not (method.distributes or method.builds_on) and (method.stage is Stage.OPTIMIZER or method.name in REFUSED)
    for setting in settings_of(method)
]
over_settings = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)

LARGEST = 0.05


@pytest.fixture(autouse=True)
def _libraries() -> Generator[None, None, None]:
    import_bitsandbytes()
    with uncompiled_optimizers():
        yield


def adam(parameters: Any) -> torch.optim.Optimizer:
    """With an eps beside which gradients are small: Adam would otherwise divide by what they are clipped to."""
    return torch.optim.AdamW(parameters, lr=1e-3, eps=0.1, weight_decay=0.0)


def two_steps(
    settings: list[MethodSetting], monkeypatch: pytest.MonkeyPatch, model: str = "convnet", **options: Any
) -> Observation:
    return observe(model, settings, monkeypatch, build_optimizer=adam, **options)


@over_settings
def test_gradients_are_clipped_before_they_are_used_or_clipping_is_refused(
    setting: MethodSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := REFUSED.get(setting.name):
        with pytest.raises(MethodRefusedError, match=reason):
            apply_settings(training_of("convnet", max_grad_norm=LARGEST), [setting])
        return
    model = "gpt2" if "convnet" in expected(setting).refused else "convnet"
    plain = two_steps([], monkeypatch, model, max_grad_norm=LARGEST)
    clipped = two_steps([setting], monkeypatch, model, max_grad_norm=LARGEST)
    norms = [math.hypot(*(float(g.norm()) for g in gradients.values())) for gradients in clipped.gradients]
    assert norms == pytest.approx([LARGEST, LARGEST], rel=1e-3)
    assert relative_error(clipped.gradients[0], plain.gradients[0]) <= get_method(setting.name).gradient_tolerance
    if fidelity_of(setting) is not Fidelity.MODEL:  # Another optimizer moves the parameters elsewhere.
        assert relative_error(clipped.updates, plain.updates) <= update_tolerance(get_method(setting.name))


def test_training_without_clipping_would_be_told_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clipped, unclipped = two_steps([], monkeypatch, max_grad_norm=LARGEST), two_steps([], monkeypatch)
    assert relative_error(unclipped.updates, clipped.updates) > 1.0


def test_groups_of_parameters_do_not_change_the_norm() -> None:
    def in_groups(parameters: Any) -> torch.optim.Optimizer:
        every = list(parameters)
        biases = [one for one in every if one.dim() == 1]
        return torch.optim.SGD([{"params": biases}, {"params": [one for one in every if one.dim() > 1]}], lr=1.0)

    def norms(build: Any) -> list[torch.Tensor]:
        training = training_of("gpt2", layers=3, dropout=0.0, build_optimizer=build)
        found = []
        for seed in range(4):  # The order of a sum does not round every time.
            training.backward(training.forward(text(2, 16, seed)))
            found.append(training.clip_grad_norm(LARGEST))
            training.optimizer.zero_grad()
        return found

    assert norms(in_groups) == norms(lambda parameters: torch.optim.SGD(parameters, lr=1.0)), "to the bit"
