"""Adapters of LLaMA-Factory and axolotl, trained two steps beside the wrapper's, where these are installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from advisor.methods.setting import MethodSetting
from tests.exports.cells import WITH_ADAPTERS
from tests.exports.test_trained_elsewhere import axolotls_trainer, llamafactorys_trainer, text_of, without_sound
from tests.exports.two_steps import by_the_wrapper, tiny

__all__ = ["without_sound"]

State = dict[str, torch.Tensor]
TOLERANCE = 1e-3


def wide() -> LlamaForCausalLM:
    """Each of whose layers is larger than its adapters of rank 32."""
    return tiny(hidden_size=96, intermediate_size=128)


def adapters_of(model: torch.nn.Module) -> State:
    """What is trained."""
    return {
        name.removeprefix("base_model.model."): parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def assert_alike(begun: State, theirs: State, ours: State) -> None:
    """All adapters have moved, and to the same place."""
    assert begun.keys() == theirs.keys() == ours.keys()
    for name, start in begun.items():
        moved = (ours[name] - start).norm()
        assert moved > 0
        assert (theirs[name] - ours[name]).norm() <= TOLERANCE * moved, name


def by_ours(setting: MethodSetting, begun: State, *, padded: bool = True) -> State:
    """The wrapper's adapters, from those with which the trainer began."""
    training = by_the_wrapper(setting, padded=padded, model=wide(), begun=begun)
    found = adapters_of(training.model)
    training.close()
    return found


@pytest.mark.parametrize("setting", WITH_ADAPTERS, ids=str)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("without_sound")
def test_llamafactory_trains_the_wrappers_adapters(
    setting: MethodSetting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    # Its peft looks for layers of torchao's, under names that torchao 0.18 no longer has.
    monkeypatch.setattr("peft.tuners.lora.torchao.is_torchao_available", lambda: False)
    trainer = llamafactorys_trainer(tmp_path, text_of("llamafactory", setting, norm=None), model=wide())
    begun = adapters_of(trainer.model)
    trainer.train()
    assert_alike(begun, adapters_of(trainer.model), by_ours(setting, begun))


@pytest.mark.parametrize("setting", WITH_ADAPTERS, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_axolotl_trains_the_wrappers_adapters(
    setting: MethodSetting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = axolotls_trainer(text_of("axolotl", setting, norm=None), tmp_path, monkeypatch, model=wide())
    begun = adapters_of(trainer.model)
    trainer.train()
    theirs = adapters_of(trainer.accelerator.unwrap_model(trainer.model))
    assert_alike(begun, theirs, by_ours(setting, begun, padded=False))
