"""Sizes of a Hugging Face config: depth and width grow as people grow them, and every size trains."""

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.sizes import accepted, own_size, sizes_of
from advisor.workload.source import resolve_source

TINY_BERT = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
TINY_LLAMA = {**TINY_BERT, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 48}
TINY_T5 = {"num_layers": 2, "num_decoder_layers": 4, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64}


def load(tmp_path: Path, model_type: str, **config: Any) -> Workload:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **config}))
    return load_workload(resolve_source(path))


def config_at(workload: Workload, **size: int) -> Any:
    return workload.build_model(**size).config


@pytest.mark.parametrize(
    ("model_type", "config", "names"),
    [
        (
            "gpt2",
            {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 99},
            ["num_hidden_layers", "hidden_size", "tokens"],
        ),
        ("bert", TINY_BERT, ["num_hidden_layers", "hidden_size"]),
        ("llama", TINY_LLAMA, ["num_hidden_layers", "hidden_size"]),
        ("qwen3", {**TINY_LLAMA, "head_dim": 8}, ["num_hidden_layers", "hidden_size"]),
        ("t5", TINY_T5, ["num_hidden_layers", "hidden_size", "tokens"]),
        ("vit", {**TINY_BERT, "image_size": 32, "patch_size": 8}, ["num_hidden_layers", "hidden_size", "image_size"]),
        ("resnet", {"depths": [1, 1, 1, 1]}, ["depth_factor", "width_factor"]),
    ],
)
def test_the_largest_size_trains_and_the_own_size_is_the_config_itself(
    tmp_path: Path, model_type: str, config: dict[str, Any], names: list[str]
) -> None:
    workload = load(tmp_path, model_type, **config)
    assert list(workload.sizes) == names
    own = own_size(workload.sizes, workload.build_model, workload.make_batch)
    assert own in sizes_of(workload.sizes)

    def parameters(size: dict[str, int | float]) -> int:
        return sum(one.numel() for one in workload.build_model(**accepted(workload.build_model, size)).parameters())

    assert parameters(own) == sum(one.numel() for one in workload.build_model().parameters())
    second = {name: values[values.index(own[name]) + 1] for name, values in workload.sizes.items()}
    assert parameters(second) > parameters(own)
    model = workload.build_model(**accepted(workload.build_model, second))
    model(**workload.make_batch(2, **accepted(workload.make_batch, second))).loss.backward()


def test_width_grows_by_whole_heads_of_the_same_size(tmp_path: Path) -> None:
    workload = load(tmp_path, "bert", **TINY_BERT)
    assert workload.sizes["hidden_size"] == (32, 48, 64, 96)
    wide = config_at(workload, hidden_size=48)
    assert (wide.hidden_size, wide.num_attention_heads, wide.intermediate_size) == (48, 6, 96)
    assert wide.num_hidden_layers == 2


def test_grouped_keys_and_values_still_divide_the_heads(tmp_path: Path) -> None:
    workload = load(tmp_path, "llama", **TINY_LLAMA)
    for width in workload.sizes["hidden_size"]:
        config = config_at(workload, hidden_size=int(width))
        assert config.num_attention_heads % config.num_key_value_heads == 0
        assert config.hidden_size == config.num_attention_heads * 8


def test_what_is_listed_layer_by_layer_grows_with_the_depth(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    model = {**TINY_LLAMA, "head_dim": 8, "layer_types": kinds, "sliding_window": 16, "use_sliding_window": True}
    workload = load(tmp_path, "qwen3", **model)
    for layers in (1, 2, 3, 6):
        assert config_at(workload, num_hidden_layers=layers).layer_types == (kinds * 3)[:layers]


def test_both_halves_of_an_encoder_decoder_grow(tmp_path: Path) -> None:
    deep = config_at(load(tmp_path, "t5", **TINY_T5), num_hidden_layers=6)
    assert (deep.num_layers, deep.num_decoder_layers) == (6, 12)


def test_no_sample_is_longer_than_the_model_reads(tmp_path: Path) -> None:
    assert "tokens" not in load(tmp_path, "llama", **TINY_LLAMA).sizes
    config = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 99}
    long = load(tmp_path, "gpt2", **config)
    assert long.sizes["tokens"] == (512, 768, 1024)
    assert long.make_batch(2, tokens=1024)["input_ids"].shape == (2, 1024)
