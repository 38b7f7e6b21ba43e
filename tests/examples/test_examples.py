"""The example files keep the contract that they teach."""

from __future__ import annotations

import ast
import functools
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.source import resolve_source

FOLDER = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["gpt2", "resnet50", "bert_classifier", "unet"]
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_layer": 1, "n_embd": 64, "n_head": 2}),
    "resnet50": ("ResNetConfig", {"depths": [1, 1, 1, 1]}),
    "bert_classifier": ("BertConfig", {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}),
}
PARAMETERS = {"gpt2": 124_439_808, "resnet50": 25_557_032}


def load(name: str) -> Workload:
    return load_workload(resolve_source(FOLDER / f"{name}.py"))


@pytest.fixture(params=NAMES)
def workload(request: pytest.FixtureRequest) -> Workload:
    return load(request.param)


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_needs_nothing_but_torch_and_transformers(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {name.split(".")[0] for name in imported}
    assert packages <= {"functools", "pathlib", "sysconfig", "torch", "transformers"}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_the_architecture_is_the_published_one(name: str) -> None:
    workload = load(name)
    with torch.device("meta"):
        model = workload.build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_the_classifier_is_bert_base_with_one_class_for_each_package() -> None:
    with torch.device("meta"):
        model: Any = load("bert_classifier").build_model()
    encoder = sum(parameter.numel() for parameter in model.bert.parameters())
    assert encoder == 109_482_240
    assert model.config.num_labels > 5


def test_the_encoder_is_resnet_34_for_one_channel() -> None:
    with torch.device("meta"):
        model: Any = load("unet").build_model()
    encoder = sum(parameter.numel() for part in (model.stem, model.stages) for parameter in part.parameters())
    classifier, two_channels_of_the_first_layer = 512 * 1000 + 1000, 2 * 64 * 7 * 7
    assert encoder == 21_797_672 - classifier - two_channels_of_the_first_layer


def test_radiographs_are_drawn_and_their_noise_is_what_the_loss_sees() -> None:
    workload = load("unet")
    torch.manual_seed(0)
    batch = workload.make_batch(2, pixels=128)
    assert {tensor.shape for tensor in batch.values()} == {(2, 1, 128, 128)}
    clean = batch["clean"]
    assert 0.0 <= float(clean.min()) < 0.05
    assert 0.6 < float(clean.max()) <= 1.0
    assert not torch.equal(clean[0], clean[1])
    assert workload.compute_loss is not None

    def loss(image: torch.Tensor) -> float:
        return float(workload.compute_loss(lambda _: image, batch))  # type: ignore[misc, arg-type, return-value]

    assert loss(clean) == pytest.approx(0.0, abs=1e-5)
    assert loss(batch["noisy"]) > 0.05
    assert loss(torch.zeros_like(clean)) > loss(batch["noisy"])


def test_batches_are_equal_under_the_same_seed_and_differ_otherwise(workload: Workload) -> None:
    torch.manual_seed(3)
    first, second = workload.make_batch(2), workload.make_batch(2)
    torch.manual_seed(3)
    again = workload.make_batch(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert all(tensor.shape[0] == 2 and tensor.device.type == "cpu" for tensor in first.values())


def test_a_batch_costs_little_after_the_first(workload: Workload) -> None:
    workload.make_batch(1)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        workload.make_batch(workload.batch_size or 1)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.1


def test_the_text_is_real() -> None:
    tokens = load("gpt2").make_batch(4)["input_ids"]
    text = bytes(tokens.flatten().tolist()).decode("utf-8", errors="replace")
    assert tokens.max() < 256
    assert sum(letter.isalpha() or letter.isspace() for letter in text) > 0.6 * len(text)


def test_snippets_are_padded_and_masked() -> None:
    torch.manual_seed(0)
    batch = load("bert_classifier").make_batch(16)
    lengths = batch["attention_mask"].sum(dim=1)
    assert (batch["input_ids"][:, 0] == 101).all()
    assert ((batch["input_ids"] != 0) == batch["attention_mask"].bool()).all()
    assert len(set(lengths.tolist())) > 4
    assert int(lengths.max()) <= batch["input_ids"].shape[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("default")
def test_the_loss_of_a_small_version_falls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load(name)
    torch.manual_seed(0)
    if name in SMALL:
        config, small = SMALL[name]
        module = sys.modules[workload.make_batch.__module__]
        monkeypatch.setattr(module, config, functools.partial(getattr(module, config), **small))
        model = workload.build_model()
    else:
        model = workload.build_model(width=8)
    optimizer = (workload.build_optimizer or torch.optim.AdamW)(model.parameters())
    batch = workload.make_batch(2)
    losses = []
    for _ in range(4):
        loss = workload.compute_loss(model, batch) if workload.compute_loss else model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
