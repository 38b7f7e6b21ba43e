"""What is exported is read by the libraries themselves, wherever they are installed."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from advisor.errors import PolicyError
from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.patching import misspelled
from advisor.exports.trainers import get_target
from advisor.methods.setting import MethodSetting, use
from tests.exports.cells import TRAINED, Cell
from tests.exports.policies import every_setting, file_of
from tests.exports.two_steps import (
    STEPS,
    adamw,
    assert_alike,
    assert_trained_as_said,
    by_the_wrapper,
    launched,
    loaded,
    module,
    quiet_trainer,
    samples,
    tiny,
)
from tests.methods.quick_compiler import quick_inductor


def texts(name: str) -> Iterator[tuple[str, str]]:
    """Label of a setting, and what is exported of it alone; what is the same comes once."""
    seen = set()
    for setting in (None, *every_setting()):
        try:
            text = export(name, *(() if setting is None else (setting,)))
        except PolicyError:
            continue
        content = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        if content not in seen:
            seen.add(content)
            yield "plain" if setting is None else setting.label, text


def export(name: str, *settings: MethodSetting) -> str:
    return new_configuration(export_policy(file_of(*settings), get_target(name), max_grad_norm=1.0))


def test_accelerate_reads_every_file_and_launches_with_its_values(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    known = {action.dest for action in launch_command_parser()._actions}
    for number, (label, text) in enumerate(texts("accelerate")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        read = ClusterConfig.from_yaml_file(str(path))
        written = yaml.safe_load(text)
        assert read.num_processes == written["num_processes"]
        assert read.distributed_type.value == written["distributed_type"]
        assert {*written.get("fsdp_config", {}), *written["dynamo_config"]} <= known, label
    path.write_text(export("accelerate", use("precision", dtype="bf16"), use("compile", scope="blocks")))
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    assert (arguments.mixed_precision, arguments.dynamo_backend) == ("bf16", "INDUCTOR")
    assert arguments.dynamo_use_regional_compilation is True
    assert arguments.num_processes == 1


@pytest.mark.filterwarnings("ignore:You passed .* AMP with fp16 is not supported on CPU")
def test_lightning_builds_its_trainer_from_every_file() -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    parser = pytest.importorskip("jsonargparse").ArgumentParser()
    parser.add_class_arguments(lightning.Trainer, "trainer")
    here = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    for label, text in texts("lightning"):
        content = yaml.safe_load(text)
        if "DeepSpeed" in text and find_spec("deepspeed") is None:
            continue
        content["trainer"] |= {**here, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = parser.instantiate_classes(parser.parse_object(content)).trainer
        assert trainer.accumulate_grad_batches == content["trainer"]["accumulate_grad_batches"]
        assert trainer.gradient_clip_val == 1.0
        strategy = content["trainer"]["strategy"]
        if isinstance(strategy, dict):
            assert type(trainer.strategy).__name__ == strategy["class_path"].rpartition(".")[2], label
            if "DeepSpeed" in text:
                assert trainer.strategy.config["zero_optimization"]["stage"] == strategy["init_args"]["stage"]
                continue
            for name in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
                assert trainer.strategy._ddp_kwargs[name] == strategy["init_args"][name]
        else:
            assert type(trainer.strategy).__name__ == "SingleDeviceStrategy"


def test_deepspeed_reads_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    for label, text in texts("deepspeed"):
        content = json.loads(text)
        steps = content["gradient_accumulation_steps"]
        content["train_batch_size"] = 4 * steps  # one process reads it
        read = config.DeepSpeedConfig(content)
        assert (read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (
            4,
            content["gradient_accumulation_steps"],
        )
        assert read.gradient_clipping == 1.0
        assert read.zero_optimization_stage == content["zero_optimization"]["stage"], label
        assert read.torch_autocast_enabled == content["torch_autocast"]["enabled"]


def test_torchtitan_parses_every_line() -> None:
    config = pytest.importorskip("torchtitan.config")
    for label, text in texts("torchtitan"):
        read = config.ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel", *text.split()])
        assert read.training.local_batch_size == (8 if "pipeline" in label else 4)
        assert read.training.max_norm == 1.0
        assert (read.activation_checkpoint is None) == ("activation_checkpoint:none" in text), label


def test_axolotls_schema_knows_every_key() -> None:
    schema = pytest.importorskip("axolotl.utils.schemas.config").AxolotlInputConfig
    assert misspelled(dict.fromkeys(schema.model_fields, 1), get_target("axolotl")) == {}
    others: dict[str, Any] = {"base_model": "org/model", "datasets": [{"path": "a", "type": "alpaca"}]}
    for label, text in texts("axolotl"):
        content = yaml.safe_load(text)
        assert set(content) <= set(schema.model_fields), label
        read = schema(**others, learning_rate=1e-4, **content)
        assert (read.micro_batch_size, read.max_grad_norm) == (4, 1.0)
        assert read.gradient_accumulation_steps == content["gradient_accumulation_steps"]


def test_llamafactorys_parser_knows_every_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_TORCHRUN", "1")
    parser = pytest.importorskip("llamafactory.hparams.parser")
    from transformers import HfArgumentParser

    fields = (field.name for kind in parser._TRAIN_ARGS for field in dataclasses.fields(kind))
    assert misspelled(dict.fromkeys(fields, 1), get_target("llamafactory")) == {}
    others = {"model_name_or_path": "org/model", "dataset": "a", "output_dir": str(tmp_path), "use_cpu": True}
    for label, text in texts("llamafactory"):
        content = yaml.safe_load(text) | {"tf32": False}  # there is none on a CPU
        model, _, training, tuning, _ = HfArgumentParser(parser._TRAIN_ARGS).parse_dict(content | others)
        assert (training.per_device_train_batch_size, training.gradient_accumulation_steps) == (
            4,
            content["gradient_accumulation_steps"],
        )
        assert training.optim == content["optim"]
        assert model.disable_gradient_checkpointing == content["disable_gradient_checkpointing"], label
        assert tuning.finetuning_type == content["finetuning_type"]


@pytest.mark.parametrize("cell", TRAINED["lightning"], ids=str)
def test_lightnings_trainer_reaches_the_wrappers_parameters(cell: Cell) -> None:
    pytest.importorskip("lightning.pytorch")
    file = file_of(*cell.settings, micro_batch=2)
    trainer = quiet_trainer(new_configuration(export_policy(file, get_target("lightning"), max_grad_norm=cell.norm)))
    trained = module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the data loader has no workers
        trainer.fit(trained, loaded(samples(padded=False)))
    assert trainer.global_step == STEPS
    assert_trained_as_said(trained.model, cell, padded=False)


@pytest.mark.parametrize("cell", TRAINED["accelerate"], ids=str)
def test_accelerates_loop_reaches_the_wrappers_parameters(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a script with ``Accelerator()``, as `accelerate launch --config_file` starts it."""
    from accelerate import Accelerator

    for name, value in launched(export("accelerate", *cell.settings), tmp_path, "--cpu").items():
        monkeypatch.setenv(name, value)
    accelerator = Accelerator()
    model = tiny()
    optimizer = adamw(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    with quick_inductor():
        for start in range(0, 4 * STEPS, 4):
            for first in (start, start + 2):
                rows = samples(padded=False)[first : first + 2]
                batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
                accelerator.backward(model(**batch).loss / 2)
            optimizer.step()
            optimizer.zero_grad()
    compiled = any(setting.name == "compile" for setting in cell.settings)
    assert any(isinstance(one, torch._dynamo.eval_frame.OptimizedModule) for one in model.modules()) is compiled
    plain = accelerator.unwrap_model(model, keep_torch_compile=False)
    assert_alike(plain, by_the_wrapper(*cell.settings, padded=False), cell.tolerance)
