"""Exports trained two steps by DeepSpeed, LLaMA-Factory and axolotl, beside the wrapper, where these are installed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from transformers import LlamaForCausalLM

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from advisor.methods.setting import MethodSetting
from tests.exports.arguments import ELSEWHERE, STEPS_OF_ITS_OWN, variables_of
from tests.exports.cells import FP16_UNDER_ZERO, TRAINED, UNDER_VARIABLES_ELSEWHERE, VARIABLES, Cell
from tests.exports.policies import file_of
from tests.exports.two_steps import (
    EPSILON,
    RATE,
    STEPS,
    adamw,
    assert_trained_as_said,
    deepspeed_engine,
    loaded,
    samples,
    the_wrappers,
    tiny,
)

Rows = list[dict[str, torch.Tensor]]


def text_of(trainer: str, *settings: MethodSetting, norm: float | None) -> str:
    return new_configuration(export_policy(file_of(*settings, micro_batch=2), get_target(trainer), max_grad_norm=norm))


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with deepspeed_engine() as found:
        yield found


@pytest.mark.parametrize("cell", TRAINED["deepspeed"], ids=str)
def test_deepspeed_reaches_the_wrappers_parameters(cell: Cell, engine: Any) -> None:
    content = json.loads(text_of("deepspeed", *cell.settings, norm=cell.norm))
    model = tiny()
    if "optimizer" in content:
        content["optimizer"]["params"] |= {"lr": RATE, "eps": EPSILON, "weight_decay": 0.0}
        own: dict[str, Any] = {"model_parameters": model.parameters()}
    else:
        own = {"optimizer": adamw(model.parameters())}
    trained, *_ = engine.initialize(model=model, config=content, **own)
    for batch in loaded(samples(padded=False)):
        trained.backward(trained(**batch).loss)
        trained.step()
    assert_trained_as_said(trained.module, cell, padded=False)


@pytest.mark.parametrize("norm", [0.0, 1.0])
def test_under_zero_deepspeed_clips_gradients_before_it_divides_them_by_the_scale(norm: float, engine: Any) -> None:
    """For which float16 is not exported beside both."""
    settings = FP16_UNDER_ZERO.settings
    lines = export_policy(file_of(*settings), get_target("deepspeed"), max_grad_norm=norm).lines
    (line,) = (line for line in lines if line.what.startswith("precision"))
    assert bool(line.keys) is (norm == 0.0)
    content = json.loads(text_of("deepspeed", *settings, norm=0.0))
    content |= {"gradient_clipping": norm, "train_batch_size": 4}  # of one process
    model = tiny()
    trained, *_ = engine.initialize(model=model, config=content, optimizer=adamw(model.parameters()))
    for batch in loaded(samples(padded=False)):
        trained.backward(trained(**batch).loss)
        trained.step()
    cell = Cell((settings[1],), norm=norm or None, tolerance=FP16_UNDER_ZERO.tolerance, differs=norm > 0)
    assert_trained_as_said(trained.module, cell, padded=False)


def words(folder: Path) -> None:
    """A tokenizer, which LLaMA-Factory loads with every model."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    known = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, 320)}}
    made = Tokenizer(WordLevel(known, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    ).save_pretrained(folder)


@pytest.fixture
def without_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """For LLaMA-Factory."""
    silent(monkeypatch)


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for torchaudio, which LLaMA-Factory imports, and whose wheels are for CUDA builds of torch alone."""
    sound = ModuleType("torchaudio")
    sound.__spec__ = ModuleSpec("torchaudio", None)
    monkeypatch.setitem(sys.modules, "torchaudio", sound)


def by_llamafactory(folder: Path, *settings: MethodSetting, norm: float | None = None) -> Any:
    """LLaMA-Factory's own trainer after two steps."""
    trainer = llamafactorys_trainer(folder, text_of("llamafactory", *settings, norm=norm))
    trainer.train()
    return trainer


def llamafactorys_trainer(
    folder: Path,
    text: str,
    *,
    model: LlamaForCausalLM | None = None,
    rows: Rows | None = None,
    use_cpu: bool = True,
) -> Any:
    """LLaMA-Factory's own trainer before its steps."""
    parser = pytest.importorskip("llamafactory.hparams.parser")
    from llamafactory.model import load_model, load_tokenizer
    from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
    from transformers import default_data_collator

    (model or tiny()).save_pretrained(folder / "model")
    words(folder / "model")
    content = yaml.safe_load(text)
    others = {"model_name_or_path": str(folder / "model"), "dataset": "a", "stage": "sft", "do_train": True}
    others["disable_shuffling"] = True
    others |= {
        **ELSEWHERE,
        **STEPS_OF_ITS_OWN,
        "use_cpu": use_cpu,
        "output_dir": str(folder / "out"),
        "infer_dtype": "float32",
    }
    model_args, _, training_args, finetuning_args, _ = parser.get_train_args({**content, **others})
    tokenizer = load_tokenizer(model_args)["tokenizer"]
    return CustomSeq2SeqTrainer(
        model=load_model(tokenizer, model_args, finetuning_args, is_trainable=True),
        args=training_args,
        finetuning_args=finetuning_args,
        model_args=model_args,
        processor=None,
        tokenizer=tokenizer,
        train_dataset=rows or samples(),
        data_collator=default_data_collator,
    )


@pytest.mark.parametrize("cell", TRAINED["llamafactory"], ids=str)
@pytest.mark.usefixtures("without_sound")
def test_llamafactory_reaches_the_wrappers_parameters(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    assert_trained_as_said(by_llamafactory(tmp_path, *cell.settings, norm=cell.norm).model, cell)


def by_axolotl(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model after two steps of axolotl's own trainer."""
    trainer = axolotls_trainer(text_of("axolotl", *cell.settings, norm=cell.norm), tmp_path, monkeypatch)
    trainer.train()
    return trainer.accelerator.unwrap_model(trainer.model)


def axolotls_trainer(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    model: LlamaForCausalLM | None = None,
    rows: Rows | None = None,
) -> Any:
    """axolotl's own trainer before its steps, of samples with equally many targets: it averages micro-batches."""
    for name in ("DO_NOT_TRACK", "AXOLOTL_DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")
    training = pytest.importorskip("axolotl.train")
    import datasets
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import TrainDatasetMeta

    # It would keep the state of accelerate, which other tests have forgotten.
    monkeypatch.setattr("axolotl.utils.distributed.distributed_state", None)
    (model or tiny()).save_pretrained(tmp_path / "model")
    words(tmp_path / "model")
    others = of_axolotl(tmp_path)
    content = yaml.safe_load(text)
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(content | others))
    listed = [{name: part.tolist() for name, part in row.items()} for row in rows or samples(padded=False)]
    listed = [row | {"attention_mask": [1] * len(row["input_ids"])} for row in listed]
    data = TrainDatasetMeta(train_dataset=datasets.Dataset.from_list(listed), total_num_steps=STEPS)
    config = load_cfg(str(tmp_path / "settings.yaml"))
    trainer, *_ = training.setup_model_and_trainer(config, data)
    return trainer


def of_axolotl(folder: Path) -> dict[str, Any]:
    """What is no part of a policy: the model and the tokenizer in ``folder``, data, and the optimizer's steps."""
    return {
        "base_model": str(folder / "model"),
        "tokenizer_type": "PreTrainedTokenizerFast",
        "special_tokens": {"pad_token": "<unk>"},
        "datasets": [{"path": "a", "type": "completion"}],
        "dataset_prepared_path": str(folder / "prepared"),
        "output_dir": str(folder / "out"),
        "sequence_len": 16,
        "pad_to_sequence_len": False,
        "curriculum_sampling": True,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "adam_epsilon": EPSILON,
        "weight_decay": 0.0,
        "lr_scheduler": "constant",
        "save_strategy": "no",
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "dataloader_prefetch_factor": None,
    }


@pytest.mark.parametrize("cell", TRAINED["axolotl"], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_axolotl_reaches_the_wrappers_parameters(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = the_wrappers(cell, padded=False)  # before axolotl has replaced the model's loss for the whole process
    assert_trained_as_said(by_axolotl(cell, tmp_path, monkeypatch), cell, beside=ours)


@pytest.mark.parametrize("name", UNDER_VARIABLES_ELSEWHERE)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("without_sound")
def test_it_trains_under_the_variables_of_its_export(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    asked = dict(variables_of(export_policy(file_of(*VARIABLES), get_target(name))))
    if any(os.environ.get(variable) != value for variable, value in asked.items()):
        pytest.skip(f"started without {asked}: python -m tests.exports.elsewhere {name}")
    assert torch.get_num_threads() == int(asked["OMP_NUM_THREADS"])
    if name == "axolotl":
        assert_trained_as_said(by_axolotl(Cell(), tmp_path, monkeypatch), Cell(), padded=False)
    else:
        monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
        assert_trained_as_said(by_llamafactory(tmp_path).model, Cell())
