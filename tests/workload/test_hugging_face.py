"""Workloads from a model type or a config: the right head, random weights, batches that the model takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.errors import WorkloadError
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.source import resolve_source

TINY_BERT = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
TINY_LLAMA = {**TINY_BERT, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 48}


def load(tmp_path: Path, model_type: str, **config: Any) -> Workload:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **config}))
    return load_workload(resolve_source(path))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("model_type", "config", "expected", "shape"),
    [
        ("gpt2", {"n_layer": 1, "n_embd": 32, "n_head": 2}, "GPT2LMHeadModel", (2, 512)),
        ("llama", TINY_LLAMA, "LlamaForCausalLM", (2, 48)),
        ("bert", TINY_BERT, "BertForMaskedLM", (2, 512)),
        ("roberta", TINY_BERT, "RobertaForMaskedLM", (2, 510)),
        (
            "bert",
            {**TINY_BERT, "architectures": ["BertForSequenceClassification"]},
            "BertForSequenceClassification",
            (2, 512),
        ),
        (
            "t5",
            {"num_layers": 1, "d_model": 32, "d_kv": 8, "num_heads": 2, "d_ff": 64},
            "T5ForConditionalGeneration",
            (2, 512),
        ),
        ("vit", {**TINY_BERT, "image_size": 32}, "ViTForImageClassification", (2, 3, 32, 32)),
        ("resnet", {"depths": [1, 1, 1, 1]}, "ResNetForImageClassification", (2, 3, 224, 224)),
    ],
)
def test_the_head_fits_the_type_and_the_batch_fits_the_head(
    tmp_path: Path, model_type: str, config: dict[str, Any], expected: str, shape: tuple[int, ...]
) -> None:
    workload = load(tmp_path, model_type, **config)
    model, batch = workload.build_model(), workload.make_batch(2)
    assert type(model).__name__ == expected
    assert model.training
    assert next(iter(batch.values())).shape == shape
    loss = model(**batch).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert "random float32 weights" in workload.notes[0]


def test_the_config_is_used_as_it_is_without_the_cache(tmp_path: Path) -> None:
    workload = load(tmp_path, "gpt2", n_layer=1, n_embd=32, n_head=2, resid_pdrop=0.25, dtype="bfloat16")
    model: Any = workload.build_model()
    assert (model.config.use_cache, model.config.resid_pdrop) == (False, 0.25)
    assert next(model.parameters()).dtype == torch.float32


def test_batches_follow_the_seed(tmp_path: Path) -> None:
    workload = load(tmp_path, "bert", **TINY_BERT)
    torch.manual_seed(1)
    first, second = workload.make_batch(2), workload.make_batch(2)
    torch.manual_seed(1)
    again = workload.make_batch(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["input_ids"], second["input_ids"])


def test_an_unknown_type_names_the_near_ones() -> None:
    with pytest.raises(WorkloadError, match=r"'hf:gtp2'.*Did you mean hf:gpt2"):
        load_workload(resolve_source("hf:gtp2"))


def test_a_family_without_batches_is_refused_with_the_way_out() -> None:
    with pytest.raises(WorkloadError, match=r"none of these heads for 'wav2vec2'.*Write a Python file"):
        load_workload(resolve_source("hf:wav2vec2"))


def test_a_config_that_transformers_rejects_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"must be one that transformers .* accepts"):
        load(tmp_path, "no-such-type")
