"""Exports trained two steps by DeepSpeed and by LLaMA-Factory, beside the wrapper, where these are installed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import yaml

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from advisor.methods.setting import MethodSetting, use
from tests.exports.arguments import ELSEWHERE, STEPS_OF_ITS_OWN
from tests.exports.policies import file_of
from tests.exports.two_steps import (
    EPSILON,
    RATE,
    adamw,
    assert_alike,
    by_the_wrapper,
    loaded,
    samples,
    tiny,
)

Settings = tuple[MethodSetting, ...]

BF16 = use("precision", dtype="bf16")


def text_of(trainer: str, *settings: MethodSetting, norm: float | None) -> str:
    return new_configuration(export_policy(file_of(*settings, micro_batch=2), get_target(trainer), max_grad_norm=norm))


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """DeepSpeed, in a group of this process alone."""
    deepspeed = pytest.importorskip("deepspeed")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in alone.items():
            patch.setenv(name, value)
        # It would compile an operator for several processes on one host.
        patch.setattr(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)
        deepspeed.init_distributed("gloo")
        yield deepspeed
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("settings", "norm", "tolerance"),
    [
        ((), None, 1e-4),
        ((), 0.1, 1e-4),
        ((use("fused_optimizer"),), 0.1, 1e-4),
        ((BF16,), None, 2e-2),
    ],
    ids=str,
)
def test_deepspeed_reaches_the_wrappers_parameters(
    settings: Settings, norm: float | None, tolerance: float, engine: Any
) -> None:
    content = json.loads(text_of("deepspeed", *settings, norm=norm))
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
    assert_alike(trained.module, by_the_wrapper(*settings, norm=norm, padded=False), tolerance)


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


@pytest.mark.parametrize(
    ("settings", "norm", "tolerance"),
    [
        ((), None, 1e-4),
        ((use("fused_optimizer"),), 0.1, 1e-4),
        ((use("checkpoint", every=1),), None, 1e-4),
        ((use("checkpoint", every=1), BF16), 0.1, 2e-2),
    ],
    ids=str,
)
def test_llamafactory_reaches_the_wrappers_parameters(
    settings: Settings, norm: float | None, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = pytest.importorskip("llamafactory.hparams.parser")
    from llamafactory.model import load_model, load_tokenizer
    from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
    from transformers import default_data_collator

    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    tiny().save_pretrained(tmp_path / "model")
    words(tmp_path / "model")
    content = yaml.safe_load(text_of("llamafactory", *settings, norm=norm))
    others = {"model_name_or_path": str(tmp_path / "model"), "dataset": "a", "stage": "sft", "do_train": True}
    others["disable_shuffling"] = True
    others |= {**ELSEWHERE, **STEPS_OF_ITS_OWN, "output_dir": str(tmp_path / "out"), "infer_dtype": "float32"}
    model_args, _, training_args, finetuning_args, _ = parser.get_train_args({**content, **others})
    tokenizer = load_tokenizer(model_args)["tokenizer"]
    trainer = CustomSeq2SeqTrainer(
        model=load_model(tokenizer, model_args, finetuning_args, is_trainable=True),
        args=training_args,
        finetuning_args=finetuning_args,
        model_args=model_args,
        processor=None,
        tokenizer=tokenizer,
        train_dataset=samples(),
        data_collator=default_data_collator,
    )
    trainer.train()
    assert_alike(trainer.model, by_the_wrapper(*settings, norm=norm), tolerance)
