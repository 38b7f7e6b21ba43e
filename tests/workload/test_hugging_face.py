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
from advisor.workload.source import resolve_source, stating
from advisor.workload.workload import Stated

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
        ("deit", {**TINY_BERT, "image_size": 32}, "DeiTForImageClassification", (2, 3, 32, 32)),
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


def test_an_unknown_type_that_is_a_folder_with_a_config_is_named_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError, match=r"a folder qwen with a config.json here; to use it, write \./qwen\."):
        load_workload(resolve_source("hf:qwen"))


def test_a_family_without_batches_is_refused_with_those_that_have_some_and_the_way_out() -> None:
    families = "causal language model, masked .*CTC speech recognizer, .*question answering model"
    with pytest.raises(WorkloadError, match=rf"{families}; .*heads for 'sam'.*Write a Python file"):
        load_workload(resolve_source("hf:sam"))


TINY_WAVE = {
    **TINY_BERT,
    "conv_dim": [16, 16],
    "conv_stride": [20, 8],
    "conv_kernel": [20, 8],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 12,
}
TINY_WHISPER = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 50,
    "num_mel_bins": 8,
    "vocab_size": 100,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("model_type", "config", "expected", "shapes"),
    [
        ("wav2vec2", TINY_WAVE, "Wav2Vec2ForCTC", {"input_values": (2, 32000), "labels": (2, 16)}),
        (
            "wav2vec2",
            {**TINY_WAVE, "architectures": ["Wav2Vec2ForSequenceClassification"]},
            "Wav2Vec2ForSequenceClassification",
            {"input_values": (2, 32000), "labels": (2,)},
        ),
        (
            "whisper",
            TINY_WHISPER,
            "WhisperForConditionalGeneration",
            {"input_features": (2, 8, 100), "labels": (2, 16)},
        ),
        (
            "audio-spectrogram-transformer",
            {**TINY_BERT, "max_length": 64, "num_mel_bins": 32},
            "ASTForAudioClassification",
            {"input_values": (2, 64, 32), "labels": (2,)},
        ),
        (
            "bert",
            {**TINY_BERT, "architectures": ["BertForTokenClassification"]},
            "BertForTokenClassification",
            {"input_ids": (2, 512), "labels": (2, 512)},
        ),
        (
            "bert",
            {**TINY_BERT, "architectures": ["BertForQuestionAnswering"]},
            "BertForQuestionAnswering",
            {"input_ids": (2, 512), "start_positions": (2,), "end_positions": (2,)},
        ),
        (
            "segformer",
            {
                "depths": [1, 1, 1, 1],
                "hidden_sizes": [8, 8, 16, 16],
                "decoder_hidden_size": 16,
                "image_size": 64,
                "architectures": ["SegformerForSemanticSegmentation"],
            },
            "SegformerForSemanticSegmentation",
            {"pixel_values": (2, 3, 64, 64), "labels": (2, 64, 64)},
        ),
    ],
)
def test_speech_and_what_else_is_trained_with_a_loss_has_batches_of_its_own(
    tmp_path: Path, model_type: str, config: dict[str, Any], expected: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    workload = load(tmp_path, model_type, **config)
    model, batch = workload.build_model(), workload.make_batch(2)
    assert type(model).__name__ == expected
    assert {name: batch[name].shape for name in shapes} == shapes
    loss = model(**batch).loss
    loss.backward()
    assert torch.isfinite(loss)


def stated(tmp_path: Path, model_type: str, config: dict[str, Any], **said: Any) -> Workload:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **config}))
    return load_workload(stating(resolve_source(path), Stated(**said)))


def test_batch_clipping_and_the_length_of_samples_are_as_stated(tmp_path: Path) -> None:
    workload = stated(tmp_path, "llama", TINY_LLAMA, batch_size=6, tokens=24, max_grad_norm=0.5)
    assert (workload.batch_size, workload.max_grad_norm) == (6, 0.5)
    assert workload.make_batch(2)["input_ids"].shape == (2, 24)
    assert 24 in workload.sizes["tokens"]


def test_an_image_size_is_that_of_the_model_and_of_its_batches(tmp_path: Path) -> None:
    workload = stated(tmp_path, "vit", {**TINY_BERT, "image_size": 32, "patch_size": 16}, image_size=64)
    batch = workload.make_batch(2)
    assert batch["pixel_values"].shape == (2, 3, 64, 64)
    assert torch.isfinite(workload.build_model()(**batch).loss)


@pytest.mark.parametrize(
    ("model_type", "config", "said", "message"),
    [
        ("llama", TINY_LLAMA, {"tokens": 64}, "--tokens must be at most .* it is 64 and .* 48 positions"),
        ("vit", {**TINY_BERT, "image_size": 32}, {"image_size": 40}, "multiple of .* 16, but it is 40. Take 32 or 48"),
        ("vit", TINY_BERT, {"tokens": 8}, "--tokens is for models of text, but this is an image classifier"),
        ("llama", TINY_LLAMA, {"image_size": 32}, "--image-size is for models of images, but this is a causal"),
    ],
)
def test_a_size_that_the_model_does_not_take_is_refused(
    tmp_path: Path, model_type: str, config: dict[str, Any], said: dict[str, int], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        stated(tmp_path, model_type, config, **said)


def test_a_config_that_transformers_rejects_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"must be one that transformers .* accepts"):
        load(tmp_path, "no-such-type")
