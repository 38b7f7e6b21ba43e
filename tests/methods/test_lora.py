"""Adapters beside frozen weights: what trains, what is computed, and what is saved."""

from __future__ import annotations

import copy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.integrations.peft import save_adapters
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.training.structure import matrix_layers, matrix_shapes, parameter_bytes
from advisor.training.training import Training
from tests.methods.tiny import MODELS, adamw, convnet, gpt2, import_bitsandbytes, text, training_of

LORA, QLORA = use("lora", rank=8), use("qlora", rank=8)
BOTH = pytest.mark.parametrize("adapted", [LORA, QLORA], ids=lambda each: each.name)
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def _libraries() -> None:
    import_bitsandbytes()


def with_adapters(model: str, *settings: MethodSetting, **options: Any) -> Training:
    training = training_of(model, **options)
    apply_settings(training, settings)
    return training


def trained(training: Training, model: str, steps: int = 3) -> list[float]:
    torch.manual_seed(1)
    return [float(training.step(MODELS[model][1](4))) for _ in range(steps)]


@pytest.mark.parametrize("model", MODELS)
def test_the_first_loss_is_that_of_plain_training_to_the_bit(model: str) -> None:
    torch.manual_seed(3)
    plain = trained(training_of(model), model, steps=1)
    assert trained(with_adapters(model, LORA), model, steps=1) == plain


def test_only_adapters_are_trained_and_the_optimizer_holds_nothing_else() -> None:
    training = with_adapters("gpt2", LORA)
    held = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    adapters = {id(p) for name, p in training.model.named_parameters() if ".lora_" in name}
    assert held == adapters
    assert len(adapters) == 2 * 16  # Of four blocks with four linear layers each; the output layer is tied.
    before = {name: p.clone() for name, p in training.model.named_parameters() if ".lora_" not in name}
    trained(training, "gpt2")
    after = dict(training.model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_running_statistics_are_still_updated() -> None:
    training, plain = with_adapters("convnet", LORA), training_of("convnet")
    for each in (training, plain):
        trained(each, "convnet", steps=1)
    name = "blocks.1.norm.running_mean"
    assert torch.equal(training.state_dict()["model"][name], plain.state_dict()["model"][name])


@BOTH
def test_a_plain_model_computes_with_the_saved_state_what_the_adapted_one_does(adapted: MethodSetting) -> None:
    training = with_adapters("gpt2", adapted)
    trained(training, "gpt2", steps=5)
    fresh = gpt2()
    untrained = float(Training(fresh).evaluate(lambda model: model(**text(4)).loss))
    fresh.load_state_dict(training.state_dict()["model"])
    loss = float(training.evaluate(lambda model: model(**text(4)).loss))
    assert float(Training(fresh).evaluate(lambda model: model(**text(4)).loss)) == pytest.approx(loss, rel=1e-5)
    assert loss < untrained - 0.01


@BOTH
def test_a_state_of_plain_training_loads_and_is_trained_on(adapted: MethodSetting) -> None:
    plain = training_of("gpt2")
    trained(plain, "gpt2", steps=5)
    state = plain.state_dict()["model"]
    training = with_adapters("gpt2", adapted)
    trained(training, "gpt2", steps=2)
    training.load_state_dict({"model": state, "optimizer": training.optimizer.state_dict()})
    loaded = training.state_dict()["model"]
    if adapted is LORA:
        assert all(torch.equal(loaded[name], value) for name, value in state.items())
    else:  # Rounded to four bits.
        name = "transformer.h.0.mlp.c_fc.weight"
        assert 0.0 < float((loaded[name] - state[name]).norm() / state[name].norm()) < 0.15


class _SharedLayers(nn.Module):
    """One module in two places, which hold its layer under two names, and a layer that two modules hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.again = self.first
        self.other = nn.Sequential(nn.Tanh(), self.first[2])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.other(self.again(self.first(inputs)))


@BOTH
def test_a_layer_in_several_places_is_adapted_in_all_of_them(adapted: MethodSetting, tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = torch.randn(8, 64)

    def training_of_shared() -> Training:
        training = Training(_SharedLayers(), build_optimizer=adamw)
        training.compute_loss = lambda model, batch: model(batch).square().mean()
        apply_settings(training, [adapted])
        return training

    training = training_of_shared()
    for _ in range(3):
        training.step(batch)
    state = training.state_dict()
    plain = _SharedLayers()
    plain.load_state_dict(state["model"])
    for place in ("again.2.weight", "other.1.weight"):
        assert torch.equal(state["model"][place], state["model"]["first.2.weight"])
    adapted_loss = float(training.evaluate(lambda model: model(batch).square().mean()))
    assert float(plain(batch).square().mean().detach()) == pytest.approx(adapted_loss, rel=1e-5)
    again = training_of_shared()
    again.load_state_dict(state)
    assert float(again.step(batch)) == float(training.step(batch))
    with pytest.raises(MethodRefusedError, match=r"first\.2 is in several"):
        save_adapters(training, tmp_path)


@BOTH
def test_adapters_of_another_rank_are_refused_and_merged_ones_are_not(adapted: MethodSetting) -> None:
    first = with_adapters("gpt2", adapted)
    second = with_adapters("gpt2", use(adapted.name, rank=32))
    state = first.state_dict()
    with pytest.raises(MethodRefusedError, match="of the same layers and rank"):
        second.load_state_dict(state)
    del state[adapted.name]
    second.load_state_dict({**state, "optimizer": second.optimizer.state_dict()})


def test_the_model_is_not_marked_as_one_whose_adapters_alone_are_saved() -> None:
    assert not hasattr(with_adapters("gpt2", LORA).model, "peft_config")


@BOTH
def test_training_goes_on_to_the_bit_in_a_model_that_began_with_other_weights(adapted: MethodSetting) -> None:
    first = with_adapters("gpt2", adapted)
    trained(first, "gpt2", steps=3)
    other = gpt2()
    nn.init.normal_(other.transformer.h[1].mlp.c_fc.weight)
    second = Training(other, build_optimizer=adamw)
    apply_settings(second, [adapted])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert trained(first, "gpt2") == trained(second, "gpt2")


def test_losses_fall_as_in_plain_training() -> None:
    def fallen(training: Training) -> float:
        losses = trained(training, "convnet", steps=20)
        return losses[0] - losses[-1]

    def eager(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-2)

    plain = fallen(training_of("convnet"))
    assert 0.5 * plain < fallen(with_adapters("convnet", LORA, build_optimizer=eager)) < 2 * plain


def test_rounded_weights_learn_what_the_whole_ones_do() -> None:
    whole, rounded = (trained(with_adapters("gpt2", each), "gpt2", steps=20) for each in (LORA, QLORA))
    assert whole[0] - whole[-1] > 0.2
    assert rounded[0] - rounded[-1] == pytest.approx(whole[0] - whole[-1], rel=0.1)


def test_every_linear_layer_of_gpt2_is_converted_although_none_is_a_linear_layer() -> None:
    """Trap: GPT-2 is made of transformers' Conv1D; looking for ``nn.Linear`` alone converts nothing, silently."""
    from advisor.methods.adapters._four_bit_linear import FourBitLinear

    plain = gpt2()
    training = with_adapters("gpt2", QLORA)
    converted = [module for module in training.model.modules() if isinstance(module, FourBitLinear)]
    assert len(converted) == len(matrix_layers(plain)) == 16
    whole = sum(4 * layer.weight.numel() for _, layer in matrix_layers(plain))
    packed = sum(module.weight.numel() for module in converted)
    assert packed == whole // 8
    adapters = sum(4 * p.numel() for p in training.model.parameters() if p.requires_grad)
    assert parameter_bytes(training.model) == parameter_bytes(plain) - whole + packed + adapters


@pytest.mark.parametrize("transposed", [False, True])
def test_four_bits_compute_with_the_rounded_weight_in_both_passes(transposed: bool) -> None:
    from advisor.methods.adapters._four_bit_linear import FourBitLinear

    torch.manual_seed(0)
    weight, bias = torch.randn(96, 64), nn.Parameter(torch.randn(96), requires_grad=False)
    layer = FourBitLinear(weight, bias, transposed=transposed)
    assert 0.0 < float((layer.whole() - weight).norm() / weight.norm()) < 0.12
    inputs = [torch.randn(3, 5, 64).requires_grad_() for _ in range(2)]
    inputs[1].data = inputs[0].detach().clone()
    outputs = [layer(inputs[0]), nn.functional.linear(inputs[1], layer.whole(), bias)]
    for output in outputs:
        output.square().sum().backward()
    assert torch.equal(outputs[0], outputs[1])
    assert torch.allclose(inputs[0].grad, inputs[1].grad, rtol=1e-5, atol=1e-4)


def test_another_float_format_is_for_what_is_computed_not_for_the_scales() -> None:
    from advisor.methods.adapters._four_bit_linear import FourBitLinear

    torch.manual_seed(0)
    layer = FourBitLinear(torch.randn(96, 64), None, transposed=False)
    whole = layer.whole()
    layer.bfloat16()
    assert torch.equal(layer.whole(), whole)
    assert layer(torch.randn(3, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16
    for tensor in layer.tensors().values():
        tensor.zero_()
    assert int(layer.whole().count_nonzero()) == 0  # What a state is restored into is what is computed with.


@pytest.mark.parametrize("extra", ["precision", "checkpoint"])
@BOTH
def test_adapters_train_alike_under_wrappers_and_autocast(adapted: MethodSetting, extra: str) -> None:
    other = use("precision", dtype="bf16") if extra == "precision" else use("checkpoint", every=1)
    alone, together = with_adapters("gpt2", adapted), with_adapters("gpt2", adapted, other)
    losses = trained(alone, "gpt2", steps=3), trained(together, "gpt2", steps=3)
    assert losses[0] == pytest.approx(losses[1], rel=0.0 if extra == "checkpoint" else 0.01)
    assert list(together.state_dict()["model"]) == list(gpt2().state_dict())


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(inputs)).square().mean()


@BOTH
def test_torch_attention_is_left_whole_and_evaluation_sees_the_adapters(adapted: MethodSetting) -> None:
    """Trap: torch's fast path for evaluation takes the weights of the layers and never calls them."""
    training = Training(Encoder(), build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01))
    apply_settings(training, [adapted])
    names = {name.partition(".lora_")[0] for name, p in training.model.named_parameters() if p.requires_grad}
    assert names == {f"encoder.layers.{number}.linear{which}" for number in (0, 1) for which in (1, 2)}
    batch = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        training.step((batch,))
    with torch.no_grad():
        seen_in_training = float(training.model(batch))
    assert float(training.evaluate(lambda model: model(batch))) == pytest.approx(seen_in_training, rel=1e-5)


def test_a_weight_that_the_loss_takes_as_it_is_is_not_rounded() -> None:
    def head(model: Any, batch: Any) -> Any:
        return model[0](batch[0]), model[2].weight, model[2].bias, batch[1]

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    training = Training(model, linear_head=head)
    apply_settings(training, [QLORA])
    assert type(model[2]) is nn.Linear
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "0.lora_A.default.weight",
        "0.lora_B.default.weight",
    ]


def test_what_has_no_weight_of_its_own_gets_no_adapter() -> None:
    assert matrix_shapes(gpt2()) == {
        "transformers.pytorch_utils.Conv1D": ((192, 64), (64, 64), (256, 64), (64, 256)),
    }
    assert matrix_shapes(convnet()) == {"torch.nn.Conv2d": ((32, 27), (32, 288)), "torch.nn.Linear": ((10, 32),)}
    assert matrix_shapes(nn.ModuleList([nn.Conv2d(4, 4, 3, groups=4), nn.MultiheadAttention(8, 2)])) == {}


@BOTH
def test_a_library_that_cannot_be_imported_is_a_refusal(
    adapted: MethodSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MethodRefusedError, match="peft cannot be imported"):
        apply_settings(training_of("gpt2"), [adapted])


@pytest.mark.parametrize("method", [each for each in CATALOGUE if each.requires], ids=lambda each: each.name)
def test_the_extra_that_is_named_installs_all_that_is_needed(method: Any) -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert {line.partition(">")[0] for line in extras[method.extra]} >= set(method.requires)


@pytest.mark.parametrize("formats", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_four_bits_take_a_bias_in_another_format_than_the_inputs(formats: tuple[torch.dtype, torch.dtype]) -> None:
    from advisor.methods.adapters._four_bit_linear import FourBitLinear

    torch.manual_seed(0)
    bias = nn.Parameter(torch.ones(96, dtype=formats[1]), requires_grad=False)
    layer = FourBitLinear(torch.randn(96, 64), bias, transposed=False)
    inputs = torch.randn(3, 64, dtype=formats[0], requires_grad=True)
    output = layer(inputs)
    output.sum().backward()
    assert output.dtype == inputs.grad.dtype == formats[0]
    assert torch.equal(output, nn.functional.linear(inputs, layer.whole().to(formats[0]), bias.to(formats[0])))
