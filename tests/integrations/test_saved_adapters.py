"""Adapters that a training saves alone: peft loads them into the model that the training began with."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.integrations import hf
from advisor.integrations.peft import save_adapters
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from tests.docs.loops import ROOT, python_blocks
from tests.integrations.small import adamw, batch, model, policy_of, trainer
from tests.methods.tiny import MODELS, import_bitsandbytes, training_of

LORA, QLORA = use("lora", rank=8), use("qlora", rank=8)


def read(base: torch.nn.Module, folder: Path) -> Any:
    """As users read it. No warning is allowed: peft would say which names it did not find."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
        return peft.PeftModel.from_pretrained(base, folder)


def test_a_trainers_checkpoints_have_the_adapters_beside_the_merged_model(tmp_path: Path) -> None:
    own = trainer(tmp_path, save_strategy="steps", save_steps=1)
    training = hf.attach(own, policy_of(LORA, use("checkpoint", every=1)), build_optimizer=adamw, save_adapters=True)
    own.train()
    loaded = read(model(), tmp_path / "checkpoint-2" / "adapters")
    merged = training.state_dict()["model"]
    training.close()
    with torch.no_grad():
        found = loaded.eval()(**batch(0)).loss
        assert float(found) != pytest.approx(float(model().eval()(**batch(0)).loss), rel=1e-3)
    whole = loaded.merge_and_unload().state_dict()
    torch.testing.assert_close(dict(whole), dict(merged))
    assert json.loads((tmp_path / "checkpoint-2" / "adapters" / "adapter_config.json").read_text())["task_type"] == (
        "CAUSAL_LM"
    )
    assert (tmp_path / "checkpoint-1" / "adapters" / "adapter_model.safetensors").exists()


def test_without_being_asked_a_trainer_saves_the_merged_model_only(tmp_path: Path) -> None:
    own = trainer(tmp_path, save_strategy="steps", save_steps=2)
    training = hf.attach(own, policy_of(LORA), build_optimizer=adamw)
    own.train()
    training.close()
    assert (tmp_path / "checkpoint-2" / "model.safetensors").exists()
    assert not (tmp_path / "checkpoint-2" / "adapters").exists()


def test_the_block_of_the_page_saves_and_loads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (
        code for code in python_blocks((ROOT / "docs/how-to.md").read_text()) if "save_adapters(training" in code
    )
    training = apply_policy(policy_of(LORA), model(), build_optimizer=adamw)
    training.step(batch(0))
    names: dict[str, Any] = {"training": training, "peft": peft, "build_model": model}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
        exec(compile(block, "docs/how-to.md", "exec"), names)
    merged = training.state_dict()["model"]
    torch.testing.assert_close(dict(names["model"].merge_and_unload().state_dict()), dict(merged))


@pytest.mark.parametrize("setting", [LORA, QLORA], ids=lambda setting: setting.name)
def test_layers_whose_weights_are_transposed_are_loaded_too(setting: MethodSetting, tmp_path: Path) -> None:
    import_bitsandbytes()
    build, make_batch = MODELS["gpt2"]
    training = training_of("gpt2")
    apply_settings(training, (setting,))
    for _ in range(3):
        training.step(make_batch(4))
    save_adapters(training, tmp_path)
    loaded = read(build(), tmp_path).eval()
    torch.manual_seed(2)
    other = make_batch(4)
    with torch.no_grad():
        found, base = float(loaded(**other).loss), float(build().eval()(**other).loss)
    expected = training.evaluate(lambda model: float(model(**other).loss))
    # Beside weights in four bits, these are not the weights that it was trained with.
    assert abs(found - expected) <= (1e-5 if setting is LORA else 0.3) * abs(expected - base)


def test_what_is_more_or_less_than_adapters_is_refused(tmp_path: Path) -> None:
    training = training_of("convnet")
    apply_settings(training, (LORA,))
    with pytest.raises(MethodRefusedError, match=r"running statistics \(BatchNorm\).*save the model"):
        save_adapters(training, tmp_path)
    with pytest.raises(MethodRefusedError, match="with lora or qlora, but this one has neither"):
        hf.attach(trainer(tmp_path), policy_of(), build_optimizer=adamw, save_adapters=True)
    assert list(tmp_path.iterdir()) == []
