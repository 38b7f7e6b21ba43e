"""Fast and small is not enough: a combination that destroys the training of a U-Net on radiographs never wins.

By memory and speed alone automatic mixed precision with checkpointing and momentum residuals looks best there, and its
loss ends far above plain training's (Rodriguez 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import advisor.methods.catalogue as catalogue
from advisor.decide.candidate import Candidate
from advisor.decide.choose import choose
from advisor.decide.eligible import why_not_eligible
from advisor.decide.guard import observed_class
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Saves, Stage, Verdict
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import conflict_between, fidelity_of, settings_of
from advisor.methods.setting import MethodSetting, ParameterValue, use
from advisor.session.trials.guard import Guard
from advisor.training.training import Training
from advisor.workload.facts import Facts
from advisor.workload.source import resolve_source
from tests.decide.examples import baseline, goal, measured
from tests.session.contexts import study
from tests.session.in_process import InProcess

pytestmark = pytest.mark.slow

UNET = Path(__file__).resolve().parents[2] / "examples" / "unet.py"
SGD = "x"
BF16, CHECKPOINT = use("precision", dtype="bf16"), use("checkpoint", every=1)
ELEMENTWISE = use("selective_checkpoint", recompute="elementwise")
FRAGILE = use("fragile_momentum")


_GAMMA = 0.35


class _Chain(nn.Module):
    """Momentum residuals over the blocks of a stage."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        speed = torch.zeros_like(image)
        for block in self.blocks:
            speed = _GAMMA * speed + (1 - _GAMMA) * block(image)
            image = image + speed
        return image


def _computed_back(kept: torch.Tensor) -> torch.Tensor:
    """What an inversion through five blocks makes of an activation: each divides by gamma what was rounded away.

    In float32 that is still small; of 16 bits more is wrong than right. The error's sign is taken from the last bit.
    """
    if kept.dtype is not torch.bfloat16:
        return kept
    sign = 1 - 2 * (kept.detach().clone().view(torch.int16) & 1)
    return kept + sign * kept * (torch.finfo(torch.bfloat16).eps / _GAMMA**5)


class FragileMomentum(Method):
    """Made to break: its inversion is right in float32, and garbage in 16 bits."""

    name = "fragile_momentum"
    summary = "Momentum residual blocks whose inversion amplifies rounding."
    fidelity = Fidelity.MODEL
    saves = frozenset({Saves.ACTIVATIONS})
    costs = "a second forward pass"
    pays = "never"
    does_not_pay = "always"
    stage = Stage.COMPILE
    citation = "after Sander et al. 2021, Momentum Residual Neural Networks"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        stages: Any = training.model.stages
        for position, stage in enumerate(stages):
            first, *others = stage
            stages[position] = nn.Sequential(first, _Chain(others))
        training.forward_contexts.append(
            lambda: torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, _computed_back)
        )


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    return InProcess(resolve_source(UNET), tmp_path_factory.mktemp("gradients"), {"width": 8, "pixels": 64})


@pytest.fixture
def guard(trials: Any, monkeypatch: pytest.MonkeyPatch) -> Guard:
    monkeypatch.setattr(catalogue, "CATALOGUE", (*CATALOGUE, FragileMomentum()))
    return Guard(study(seconds=10_000.0), trials)


def candidate(*settings: MethodSetting, rate: float = 150.0) -> Candidate:
    fidelity = max((fidelity_of(one) for one in settings), key=lambda one: one.rank)
    return measured(rate, *settings, fidelity=fidelity)


@pytest.mark.parametrize("setting", [CHECKPOINT, ELEMENTWISE], ids=lambda one: one.label)
def test_exact_methods_pass_with_the_very_same_losses(guard: Guard, setting: MethodSetting) -> None:
    found = guard.checked(candidate(setting)).guard
    assert found is not None
    assert found.learned > 0.05
    assert found.loss_drift < 1e-6
    assert found.gradient is not None
    assert found.gradient.error < 1e-6
    assert observed_class(Fidelity.EXACT, found) is Fidelity.EXACT


def test_16_bits_with_checkpointing_stay_what_they_declare(guard: Guard) -> None:
    checked = guard.checked(candidate(BF16, CHECKPOINT))
    assert why_not_eligible(checked, goal(fidelity=Fidelity.PRECISION)) is None, checked.guard


def test_a_model_that_changes_without_breaking_is_the_users_choice(guard: Guard) -> None:
    checked = guard.checked(candidate(FRAGILE))
    assert why_not_eligible(checked, goal(fidelity=Fidelity.MODEL)) is None, checked.guard
    assert why_not_eligible(checked, goal(fidelity=Fidelity.LOSSY)) is not None


def test_the_combination_that_destroys_the_loss_never_wins(guard: Guard) -> None:
    checked = guard.checked(candidate(BF16, CHECKPOINT, FRAGILE, rate=1000.0))
    assert checked.guard is not None
    reason = why_not_eligible(checked, goal(fidelity=Fidelity.MODEL))
    assert reason is not None, checked.guard
    assert reason.startswith(("its loss ends", "its loss became"))
    everything = [baseline(100.0), guard.checked(candidate(CHECKPOINT, rate=120.0)), checked]
    answer = choose(
        everything, goal(fidelity=Fidelity.MODEL), refused_settings={}, untried=0, stopped_because="it ended"
    )
    assert answer.winner.policy.methods == (CHECKPOINT,)


def test_momentum_residuals_are_judged_by_their_loss(guard: Guard) -> None:
    for setting in settings_of(get_method("momentum_residual")):
        settings = [BF16, CHECKPOINT, setting]
        if conflict_between(settings) is not None:
            settings = [BF16, setting]
        checked = guard.checked(candidate(*settings, rate=1000.0))
        assert checked.guard is not None, checked.not_compared
        assert checked.guard.loss_drift > 0, "what is learned changes"
        assert why_not_eligible(checked, goal(fidelity=Fidelity.LOSSY)) is not None
        broken = observed_class(Fidelity.MODEL, checked.guard) is None
        assert (why_not_eligible(checked, goal(fidelity=Fidelity.MODEL)) is not None) == broken
