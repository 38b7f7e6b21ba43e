"""What is exported for Hugging Face's Trainer, read by transformers and trained by its Trainer beside the wrapper."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from pathlib import Path

import pytest
import torch
import yaml
from transformers import (
    BertConfig,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from advisor import apply_policy
from advisor.errors import PolicyError
from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.hf_keys import HF
from advisor.exports.patching import misspelled
from advisor.exports.rules import Status
from advisor.methods.setting import MethodSetting, use
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of, variables_of
from tests.exports.cells import BUILT, TRAINED, Cell
from tests.exports.policies import every_setting, file_of
from tests.exports.two_steps import assert_alike, assert_trained_as_said, by_the_wrapper, samples, tiny
from tests.exports.two_steps import the_wrappers as the_wrappers_training
from tests.methods.quick_compiler import quick_inductor

ADAM_8BIT, ADAM_4BIT, ADAFACTOR = BUILT["hf"]
BLOCKS_COMPILED = use("compile", scope="blocks")


def test_transformers_reads_what_is_exported_of_every_setting(tmp_path: Path) -> None:
    read_before: set[str] = set()
    for setting in every_setting():
        try:
            text = new_configuration(export_policy(file_of(setting), HF, max_grad_norm=1.0))
        except PolicyError:
            continue
        content = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        if content in read_before:
            continue
        read_before.add(content)
        off = {"tf32": False} if setting.parameters.get("dtype") == "tf32" else {}  # there is none on a CPU
        arguments = arguments_of(text, tmp_path, **off)
        assert arguments.per_device_train_batch_size == 4
        assert arguments.max_grad_norm == 1.0
        assert not arguments.auto_find_batch_size
        if setting.name == "fsdp":
            assert arguments.fsdp_plugin_args["fsdp_version"] == 2
            assert arguments.fsdp_plugin_args["reshard_after_forward"] is setting.parameters["reshard"]
            assert arguments.fsdp_plugin_args.get("cpu_offload", False) is setting.parameters["offload"]
        for key, value in yaml.safe_load(text).items():
            if key not in (*off, "fsdp_config"):
                assert getattr(arguments, key) == value, (setting.label, key)


def test_no_valid_argument_looks_misspelled() -> None:
    assert misspelled(dict.fromkeys((field.name for field in dataclasses.fields(TrainingArguments)), 1), HF) == {}


def trained(text: str, folder: Path) -> Trainer:
    """The Trainer after its steps."""
    arguments = arguments_of(text, folder, **STEPS_OF_ITS_OWN)
    trainer = Trainer(tiny(), arguments, train_dataset=samples())  # type: ignore[arg-type]
    trainer.train()
    return trainer


@pytest.mark.parametrize("cell", TRAINED["hf"], ids=str)
def test_the_trainer_reaches_the_wrappers_parameters(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = export_policy(file_of(*cell.settings, micro_batch=2), HF, max_grad_norm=cell.norm)
    assert export.complete is not any(setting in BUILT["hf"] for setting in cell.settings)
    for name, value in variables_of(export):
        monkeypatch.setenv(name, value)
    ours = the_wrappers_training(cell)
    # Kernels are made once.
    with quick_inductor() if BLOCKS_COMPILED in cell.settings else contextlib.nullcontext():
        theirs = trained(new_configuration(export), tmp_path).model
    if ADAM_8BIT in cell.settings:  # or it would keep the formats of layers for all that is trained later
        importlib.import_module("bitsandbytes").optim.GlobalOptimManager.get_instance().initialize()
    assert_trained_as_said(theirs, cell, beside=ours)


def test_on_a_cpu_the_trainer_trains_in_float32_where_it_is_asked_for_float16(tmp_path: Path) -> None:
    """For which the export of a policy that was measured there does not ask for it."""
    text = new_configuration(export_policy(file_of(use("precision", dtype="fp16"), micro_batch=2), HF))
    assert yaml.safe_load(text)["fp16"]
    assert_alike(trained(text, tmp_path).model, by_the_wrapper(), 1e-4)


def the_optimizer(settings: MethodSetting, folder: Path) -> torch.optim.Optimizer:
    """The one that the Trainer builds from what is exported."""
    text = new_configuration(export_policy(file_of(settings), HF))
    optimizer: torch.optim.Optimizer = Trainer(tiny(), arguments_of(text, folder)).create_optimizer()
    return optimizer


def the_wrappers(settings: MethodSetting) -> torch.optim.Optimizer:
    training = apply_policy(file_of(settings), tiny(), device="cpu")
    optimizer = training.optimizer
    training.close()
    return optimizer


@pytest.mark.parametrize("setting", [use("adam_low_bit", state="8bit"), ADAM_4BIT], ids=str)
def test_torchaos_optimizers_share_scales_as_the_table_says(setting: MethodSetting, tmp_path: Path) -> None:
    theirs, ours = the_optimizer(setting, tmp_path), the_wrappers(setting)
    assert type(theirs) is type(ours)
    (line,) = (line for line in export_policy(file_of(setting), HF).lines if line.what == setting.words)
    assert (theirs.block_size == ours.block_size) == (line.status is Status.EXPORTED)  # type: ignore[attr-defined]


def test_the_trainer_keeps_the_8_bit_moments_of_embeddings_in_32_bits(tmp_path: Path) -> None:
    manager = pytest.importorskip("bitsandbytes").optim.GlobalOptimManager.get_instance()
    setting = ADAM_8BIT
    training = by_the_wrapper(setting)
    try:
        theirs = trained(new_configuration(export_policy(file_of(setting, micro_batch=2), HF)), tmp_path)
    finally:
        manager.initialize()  # or it would keep the formats of these layers for all that is trained later
    kinds = []
    for model, optimizer in ((theirs.model, theirs.optimizer), (training.model, training.optimizer)):
        states = {id(parameter): state for parameter, state in optimizer.state.items()}
        layers = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
        kinds.append([states[id(layer)]["state1"].dtype for layer in layers])
    training.close()
    assert kinds == [[torch.float32, torch.uint8], [torch.uint8, torch.uint8]]


def test_the_trainers_adafactor_is_another_than_torchs(tmp_path: Path) -> None:
    theirs, ours = the_optimizer(ADAFACTOR, tmp_path), the_wrappers(ADAFACTOR)
    assert type(ours) is torch.optim.Adafactor
    assert type(theirs) is not type(ours)
    assert not any(group["scale_parameter"] or group["relative_step"] for group in theirs.param_groups)


@pytest.mark.parametrize("setting", [BLOCKS_COMPILED, use("compile", scope="model")], ids=str)
def test_the_trainer_compiles_what_the_policy_says(
    setting: MethodSetting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = export_policy(file_of(setting), HF)
    for name, value in variables_of(export):
        monkeypatch.setenv(name, value)
    plugin = Trainer(tiny(), arguments_of(new_configuration(export), tmp_path)).accelerator.state.dynamo_plugin
    assert plugin.backend == "INDUCTOR"
    assert plugin.use_regional_compilation is (setting == BLOCKS_COMPILED)


def test_the_trainer_counts_the_first_label_of_models_whose_loss_it_does_not_know(tmp_path: Path) -> None:
    def gradient(loss_type: str | None) -> torch.Tensor:
        set_seed(0)
        sizes = {"vocab_size": 320, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
        model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        model.loss_type = loss_type
        text = new_configuration(export_policy(file_of(micro_batch=8, accumulation_steps=1), HF))
        trainer = Trainer(model, arguments_of(text, tmp_path), train_dataset=samples(padded=False))  # type: ignore[arg-type]
        (batch,) = trainer.get_train_dataloader()
        _, count = trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
        trainer.training_step(trainer.model, batch, num_items_in_batch=count)
        found = trainer.model.transformer.ln_f.weight.grad
        assert found is not None
        return found

    torch.testing.assert_close(gradient(None) * 12, gradient("ForCausalLM") * 11)


def test_the_trainer_adds_up_the_losses_of_models_that_do_not_divide_by_all_targets(tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    drawn = torch.Generator().manual_seed(0)
    rows = [
        {"input_ids": torch.randint(1, 64, (6,), generator=drawn), "labels": torch.randint(2, (6,), generator=drawn)}
        for _ in range(4)
    ]

    def gradient(accumulation: int, *, mean: bool) -> torch.Tensor:
        set_seed(0)
        model = BertForTokenClassification(BertConfig(**sizes, **dropouts, intermediate_size=16, num_labels=2))
        policy = file_of(micro_batch=4 // accumulation, accumulation_steps=accumulation)
        trainer = Trainer(model, arguments_of(new_configuration(export_policy(policy, HF)), tmp_path))
        if mean:
            trainer.model_accepts_loss_kwargs = False
        trainer.train_dataset = rows  # type: ignore[assignment]
        batches, count = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), accumulation, model.device)
        trainer.current_gradient_accumulation_steps = accumulation
        for batch in batches:
            trainer.training_step(model, batch, num_items_in_batch=count)
        found = model.classifier.weight.grad
        assert found is not None
        return found

    whole = gradient(1, mean=False)
    torch.testing.assert_close(gradient(2, mean=False), whole * 2)
    torch.testing.assert_close(gradient(2, mean=True), whole)
