"""Weights of which a fixed number is not zero: which ones, when they are exchanged, what is told of their memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.adapters import sparse_reparameterization
from advisor.methods.adapters._sparse_weights import SparseWeights, shares, sparse_layers
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.methods.tiny import MODELS, adamw, convnet, gpt2, import_bitsandbytes, training_of

SPARSE = use("sparse_reparameterization", nonzero=0.3)


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchange weights after every second step."""
    monkeypatch.setattr(sparse_reparameterization, "_STEPS_BETWEEN", 2)


def test_frozen_weights_stay_as_they_are() -> None:
    model = convnet()
    model.blocks[1].requires_grad_(False)
    assert [name for name, _ in sparse_layers(model)] == ["blocks.2.conv", "blocks.3.conv"]
    training = Training(model.requires_grad_(False))
    with pytest.raises(MethodRefusedError, match="with trained weights of their own"):
        apply_settings(training, [SPARSE])


def sparse_training(model: str, *further: MethodSetting, **options: Any) -> tuple[Training, SparseWeights]:
    training = training_of(model, **options)
    apply_settings(training, [SPARSE, *further])
    weights = training.state_parts["sparse_reparameterization"]
    assert isinstance(weights, SparseWeights)
    return training, weights


def trained(training: Training, model: str, steps: int = 1, seed: int = 1) -> list[float]:
    torch.manual_seed(seed)
    return [float(training.step(MODELS[model][1](4))) for _ in range(steps)]


def values(training: Training, weights: SparseWeights) -> dict[str, torch.Tensor]:
    return {name: training.model.get_submodule(name).weight.detach() for name in weights.masks}


def test_first_convolution_and_output_layer_stay_dense() -> None:
    assert [name for name, _ in sparse_layers(convnet())] == [f"blocks.{number}.conv" for number in (1, 2, 3)]
    names = [name for name, _ in sparse_layers(gpt2())]
    assert len(names) == 16  # The output layer is tied to the embedding, so no linear layer is left out for it.
    assert "lm_head" not in names
    perceptron = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    assert [name for name, _ in sparse_layers(perceptron)] == ["0", "1"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("further", [(), (use("adam_8bit"),), (use("optimizer_in_backward"),)], ids=str)
@pytest.mark.usefixtures("_often")
def test_exactly_the_share_is_not_zero_whatever_steps(model: str, further: tuple[MethodSetting, ...]) -> None:
    import_bitsandbytes()
    training, weights = sparse_training(model, *further)
    expected = sum(round(0.3 * mask.numel()) for mask in weights.masks.values())
    first = copy.deepcopy(weights.masks)
    for _ in range(5):
        trained(training, model)
        assert sum(int(mask.sum()) for mask in weights.masks.values()) == expected
        for name, value in values(training, weights).items():
            assert int(value[~weights.masks[name]].count_nonzero()) == 0
    assert any(not torch.equal(mask, first[name]) for name, mask in weights.masks.items())
    grown = {name: mask & ~first[name] for name, mask in weights.masks.items()}
    assert any(int(values(training, weights)[name][mask].count_nonzero()) for name, mask in grown.items())


def test_gradients_and_moments_are_zero_where_weights_are() -> None:
    training, weights = sparse_training("gpt2")
    training.backward(training.forward(MODELS["gpt2"][1](4)))
    for name, mask in weights.masks.items():
        parameter = training.model.get_submodule(name).weight
        assert int(parameter.grad[~mask].count_nonzero()) == 0 < int(parameter.grad.count_nonzero())
    training.optimizer_step()
    for name, mask in weights.masks.items():
        state = training.optimizer.state[training.model.get_submodule(name).weight]
        assert all(int(state[moment][~mask].count_nonzero()) == 0 for moment in ("exp_avg", "exp_avg_sq"))


def alone(values: list[list[float]], nonzero: float = 1.0) -> tuple[list[nn.Linear], SparseWeights]:
    """Linear layers with these weights, all let through unless said otherwise."""
    layers = []
    for row in values:
        layer = nn.Linear(len(row), 1, bias=False)
        layer.weight.data = torch.tensor([row])
        layers.append(layer)
    optimizer = adamw(parameter for layer in layers for parameter in layer.parameters())
    named = [(str(number), layer) for number, layer in enumerate(layers)]
    return layers, SparseWeights(named, nonzero, 1, lambda: optimizer)


def test_the_smallest_are_pruned_by_one_threshold_and_grow_where_most_survived() -> None:
    layers, weights = alone([[0.5e-3] * 3 + [1.0] * 97, [0.5e-3] * 1 + [1.0] * 99])
    weights.exchange()
    # Four of 200 were below the threshold of 0.001; it is to be 200 * 0.01378 of them, give or take a tenth.
    assert weights.threshold == 0.0005
    assert [int((layer.weight == 0).sum()) for layer in layers] == [3, 1]
    # 97 and 99 survived, so each would get two; the second has room for one.
    assert [int(mask.sum()) for mask in weights.masks.values()] == [100, 100]


@pytest.mark.parametrize(("small", "threshold"), [(0, 0.002), (3, 0.001), (5, 0.0005)])
def test_the_threshold_follows_the_number_that_it_prunes(small: int, threshold: float) -> None:
    _, weights = alone([[0.6e-3] * small + [1.0] * (200 - small)])
    weights.exchange()
    assert weights.threshold == threshold


def test_a_threshold_above_all_weights_does_not_prune_them_all() -> None:
    layers, weights = alone([[1e-5 * (number + 1) for number in range(100)]])
    weights.exchange()
    assert 0 < int((layers[0].weight == 0).sum()) <= 2
    assert weights.threshold < 1e-4


def test_the_optimizer_begins_anew_for_exchanged_weights() -> None:
    training, weights = sparse_training("convnet")
    trained(training, "convnet", 3)
    weights.exchange()
    sparse = {id(training.model.get_submodule(name).weight) for name in weights.masks}
    assert {id(parameter) for parameter in training.optimizer.state} & sparse == set()
    assert len(training.optimizer.state) > 0
    trained(training, "convnet")
    first = training.optimizer.state[training.model.get_submodule("blocks.1.conv").weight]
    assert int(first["step"]) == 1


def test_shares_are_whole_in_proportion_and_within_what_there_is_room_for() -> None:
    assert shares(10, {"a": 3, "b": 1}, {"a": 100, "b": 100}) == {"a": 8, "b": 2}
    assert shares(10, {"a": 3, "b": 1}, {"a": 4, "b": 100}) == {"a": 4, "b": 6}
    assert shares(4, {"a": 0, "b": 5}, {"a": 9, "b": 2}) == {"a": 2, "b": 2}
    assert shares(0, {"a": 0}, {"a": 0}) == {"a": 0}


@pytest.mark.usefixtures("_often")
def test_training_goes_on_with_the_same_exchanges() -> None:
    first, masks = sparse_training("convnet")
    trained(first, "convnet", 3)
    second, restored = sparse_training("convnet")
    trained(second, "convnet", 1, seed=9)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert trained(first, "convnet", 5) == trained(second, "convnet", 5)
    assert all(torch.equal(mask, restored.masks[name]) for name, mask in masks.masks.items())
    assert masks.threshold == restored.threshold


def test_dense_weights_are_masked_as_they_are_loaded() -> None:
    training, weights = sparse_training("convnet")
    training.load_state_dict({**training_of("convnet").state_dict(), "optimizer": training.optimizer.state_dict()})
    for name, value in values(training, weights).items():
        assert int(value.count_nonzero()) == int(weights.masks[name].sum())


def test_the_masks_of_another_model_are_refused() -> None:
    training, _ = sparse_training("convnet")
    state = training.state_dict()
    state["sparse_reparameterization"]["masks"] = {"other": torch.ones(1)}
    with pytest.raises(MethodRefusedError, match="of the layers of the model"):
        training.load_state_dict(state)


@pytest.mark.usefixtures("_often")
def test_what_dropout_draws_does_not_depend_on_the_masks() -> None:
    drawn = []
    for build in (lambda: training_of("convnet"), lambda: sparse_training("convnet")[0]):
        training = build()
        trained(training, "convnet", 3)
        drawn.append(torch.rand(1))
    assert torch.equal(*drawn)


def test_what_a_sparse_format_would_take_is_told_apart_from_what_is_taken() -> None:
    training, weights = sparse_training("convnet")
    assert not training.notes
    trained(training, "convnet", 2)
    (note,) = [note for note in training.notes if "sparse format" in note]
    elements, count = 3 * 32 * 288, 3 * round(0.3 * 32 * 288)
    found = weights.stored_bytes()
    assert found["dense"] == 4 * 4 * elements  # Weight, gradient and Adam's two moments.
    assert found["values"] == 4 * 4 * count
    assert found["indices"] == 3 * (
        -(-count // 3 * 9 // 8) + 4 * 33
    )  # 288 columns take 9 bits; rows begin at 33 places.
    assert "432 KiB" in note
    assert "measured peak is that of the dense ones" in note


def test_sgd_without_moments_takes_less() -> None:
    training, weights = sparse_training("convnet", build_optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    trained(training, "convnet")
    assert weights.stored_bytes()["dense"] == 2 * 4 * 3 * 32 * 288


def test_a_model_with_its_first_and_last_layer_alone_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(MethodRefusedError, match="besides the first convolution and the last layer"):
        apply_settings(Training(model), [SPARSE])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("_often")
def test_losses_fall_as_in_plain_training(model: str) -> None:
    plain = trained(training_of(model), model, 20)
    sparse = trained(sparse_training(model)[0], model, 20)
    assert 0.3 * (plain[0] - plain[-1]) < sparse[0] - sparse[-1] < 3 * (plain[0] - plain[-1])


def test_an_optimizer_on_the_host_begins_anew_for_exchanged_weights_too() -> None:
    """Trap: its state is that of copies of the weights, under which a weight of the model is not found."""
    training, weights = sparse_training("gpt2", use("host_optimizer"))
    trained(training, "gpt2")
    assert "optimizer state of" in training.notes[-1]
    per_element = 4 * 4  # Weight, gradient and two moments.
    assert weights.stored_bytes()["dense"] == per_element * weights.total
    states = len(training.optimizer.state)
    weights.exchange()
    assert len(training.optimizer.state) == states - len(weights.masks)
