"""The structure of real architectures, in small configurations."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from advisor.errors import WorkloadError
from advisor.training.moving import moved_tensors, on_device, replace_tensors
from advisor.training.recompute import recompute_modules
from advisor.training.structure import (
    buffer_bytes,
    find_attention,
    find_blocks,
    has_batchnorm,
    has_dropout,
    parameter_bytes,
    parameter_count,
    stages_of,
    trainable_parameter_count,
)
from tests.methods.tiny import ConvBlock, convnet, gpt2

TINY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=50, num_hidden_layers=12, **TINY)
    )


def resnet50() -> nn.Module:
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8, 8, 8], depths=[3, 4, 6, 3])
    )


def vit() -> nn.Module:
    config = transformers.ViTConfig(num_hidden_layers=4, image_size=16, patch_size=8, **TINY)
    return transformers.ViTForImageClassification(config)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 3)


def stages_of_sequentials() -> nn.Module:
    def stage(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(before, after, 3), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(nn.ModuleList([stage(3, 4), stage(4, 8), stage(8, 8)]), nn.Linear(8, 2))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())


@pytest.mark.parametrize(
    ("build", "block_class", "count"),
    [
        (gpt2, "GPT2Block", 4),
        (bert, "BertLayer", 12),
        (resnet50, "ResNetBottleNeckLayer", 16),
        (vit, "ViTLayer", 4),
        (convnet, "ConvBlock", 4),
        (encoder, "TransformerEncoderLayer", 3),
        (stages_of_sequentials, "Sequential", 3),
    ],
)
def test_the_repeated_blocks_are_found(build: Callable[[], nn.Module], block_class: str, count: int) -> None:
    blocks = find_blocks(build())
    assert [type(block).__name__ for block in blocks] == [block_class] * count


def test_a_chain_of_single_layers_has_no_blocks() -> None:
    assert find_blocks(perceptron()) == []


def test_declared_classes_are_taken_as_said_and_never_inside_one_another() -> None:
    model = convnet()
    blocks = find_blocks(model, (nn.BatchNorm2d, type(model.blocks[0])))  # type: ignore[index]
    assert blocks == list(model.blocks)  # type: ignore[arg-type]


def test_a_declared_class_that_the_model_lacks_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="no module is of Bilinear"):
        find_blocks(convnet(), (nn.Bilinear,))


@pytest.mark.parametrize(
    ("build", "attention_class", "count"),
    [
        (gpt2, "GPT2Attention", 4),
        (bert, "BertAttention", 12),
        (vit, "ViTAttention", 4),
        (encoder, "MultiheadAttention", 3),
    ],
)
def test_attention_is_found_once_per_block_and_outermost(
    build: Callable[[], nn.Module], attention_class: str, count: int
) -> None:
    assert [type(module).__name__ for module in find_attention(build())] == [attention_class] * count


def test_models_without_attention_have_none() -> None:
    assert find_attention(resnet50()) == []


def test_attention_is_known_by_the_names_that_people_give_it() -> None:
    kinds = [type(name, (nn.Linear,), {}) for name in ("CausalSelfAttention", "NanoAttn", "MHA", "Mlp")]
    model = nn.Sequential(*(kind(2, 2) for kind in kinds), nn.MultiheadAttention(2, 1))
    assert find_attention(model) == [model[0], model[1], model[2], model[4]]


def test_batchnorm_counts_only_where_it_updates_statistics() -> None:
    model = convnet()
    assert has_batchnorm(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    assert not has_batchnorm(model)
    assert not has_batchnorm(nn.BatchNorm1d(3, track_running_stats=False))
    assert not has_batchnorm(gpt2())


def test_dropout_counts_only_above_zero() -> None:
    assert has_dropout(gpt2(dropout=0.1))
    assert not has_dropout(gpt2(dropout=0.0))
    assert has_dropout(nn.MultiheadAttention(8, 2, dropout=0.1))


def test_sizes_count_tied_weights_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 3, bias=False), "b": nn.Linear(4, 3, bias=False)})
    model["b"].weight = model["a"].weight
    model.register_buffer("table", torch.zeros(5, dtype=torch.float64))
    assert parameter_count(model) == trainable_parameter_count(model) == 12
    assert parameter_bytes(model) == 48
    assert buffer_bytes(model) == 40
    model["a"].weight.requires_grad_(False)
    assert trainable_parameter_count(model) == 0


def test_blocks_that_one_module_holds_are_a_stage_also_inside_of_wrappers() -> None:
    def stage(count: int) -> nn.Sequential:
        return nn.Sequential(*(ConvBlock(4, 4, 0.0) for _ in range(count)))

    model = nn.Sequential(stage(3), stage(1), stage(2))
    blocks = find_blocks(model, (ConvBlock,))
    assert stages_of(model, blocks) == [range(3), range(3, 4), range(4, 6)]
    recompute_modules(model, blocks[1:2])
    assert stages_of(model, blocks) == [range(3), range(3, 4), range(4, 6)]
    listed = gpt2(4)
    assert stages_of(listed, find_blocks(listed)) == [range(4)]


def test_fake_parameters_are_moved_although_weak_references_hold_them_and_what_is_shared_stays_shared() -> None:
    """Trap: ``Module.to`` fails under fake tensors where a weak reference holds one, on a GPU alone."""
    cuda = torch.device("cuda", 0)
    with FakeTensorMode():
        model = gpt2(2)
        model.register_buffer("table", torch.zeros(5))
        model.transformer.wpe.weight.requires_grad_(False)
        held = [weakref.ref(parameter) for parameter in model.parameters()]
        before = {name: (p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()}
        assert on_device(model, cuda) is model
    assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {cuda}
    assert {name: (p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()} == before
    assert all(isinstance(p, FakeTensor) and isinstance(p, nn.Parameter) for p in model.parameters())
    assert model.lm_head.weight is model.transformer.wte.weight
    moved = {id(parameter) for parameter in model.parameters()}
    assert moved.isdisjoint(id(reference()) for reference in held), "nothing is put in the place of what is held"


def test_tensors_are_replaced_in_the_order_in_which_torch_moves_them() -> None:
    """Children first, and what is shared with its first owner."""
    model = gpt2(2)
    model.register_buffer("table", torch.zeros(5))
    moved: list[int] = []
    model._apply(lambda tensor: moved.append(tensor.data_ptr()) or tensor)  # type: ignore[func-returns-value]
    assert [tensor.data_ptr() for tensor in moved_tensors(model)] == moved
    replaced: list[int] = []
    replace_tensors(model, lambda tensor: replaced.append(tensor.data_ptr()) or tensor.detach())  # type: ignore[func-returns-value]
    assert replaced == list(dict.fromkeys(moved))


def test_what_is_on_the_device_already_is_left_alone() -> None:
    model = gpt2(2)
    before = dict(model.named_parameters())
    assert on_device(model, torch.device("cpu")) is model
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


def test_a_sparse_buffer_counts_by_what_it_holds() -> None:
    """The trap: torch has no number of bytes for it, so that a model with a fixed graph could not be tuned."""
    model = nn.Linear(2, 2)
    model.register_buffer("table", torch.zeros(5))
    model.register_buffer("graph", torch.eye(100).to_sparse())
    assert buffer_bytes(model) == 5 * 4 + 100 * 4 + 2 * 100 * 8
