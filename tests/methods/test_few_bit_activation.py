from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.errors import MethodRefusedError
from advisor.methods.activations._few_bit import FewBitActivations, pack, unpack
from advisor.methods.activations.derivative_levels import derivative_levels
from advisor.methods.compose import apply_settings, judge
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.contract.observe import LiveBytes
from tests.methods.tiny import cpu, facts_of, gpt2, text

BITS = (1, 2, 3, 4)


class Functional(nn.Module):
    """A block that calls the functions, one of them through a helper and by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(helper(functional.silu(self.first(values))))


def helper(values: torch.Tensor) -> torch.Tensor:
    return functional.gelu(input=values, approximate="tanh")


class Silent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layers(values).square().mean()


class Stack(nn.Module):
    """Blocks of any kind; returns a loss."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            values = values + block(values)
        return values.square().mean()


def stack(block: Callable[[], nn.Module]) -> Stack:
    torch.manual_seed(0)
    return Stack(block(), block())


def sequential(activation: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), activation(), nn.Linear(64, 16))


def trained(model: nn.Module, *settings: str, bits: int = 2) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """The loss, the gradients and the bytes held after the forward pass."""
    training = Training(model)
    known = {"few": use("few_bit_activation", bits=bits), "checkpoint": use("checkpoint", every=1)}
    apply_settings(training, [known[name] for name in settings])
    values = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
    live = LiveBytes()
    with live:
        loss = training.forward(values)
    held = live.live()
    training.backward(loss)
    gradients = {name: p.grad for name, p in training.model.named_parameters() if p.grad is not None}
    training.close()
    return loss.detach(), {name.replace("_checkpoint_wrapped_module.", ""): g for name, g in gradients.items()}, held


FORMULAS = {
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
over_formulas = pytest.mark.parametrize("formula", FORMULAS)


def pieces_and_derivatives(formula: str, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pieces of normal inputs, and the derivatives that autograd computes for them."""
    values = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (derivative,) = torch.autograd.grad(FORMULAS[formula](values).sum(), values)
    boundaries = torch.tensor(derivative_levels(formula, bits)[0], dtype=torch.float64)
    return torch.bucketize(values.detach(), boundaries), derivative


def lost(formula: str, bits: int) -> float:
    """What an incoming gradient loses: the relative error of the levels."""
    pieces, derivative = pieces_and_derivatives(formula, bits)
    levels = torch.tensor(derivative_levels(formula, bits)[1], dtype=torch.float64)
    return float((levels[pieces] - derivative).norm() / derivative.norm())


@over_formulas
def test_more_bits_are_nearer_to_the_derivative(formula: str) -> None:
    tables = [derivative_levels(formula, bits) for bits in BITS]
    assert [len(levels) for _, levels in tables] == [2, 4, 8, 16]
    assert [len(boundaries) for boundaries, _ in tables] == [1, 3, 7, 15]
    errors = [lost(formula, bits) for bits in BITS]
    assert errors == sorted(errors, reverse=True)
    assert all(list(boundaries) == sorted(boundaries) for boundaries, _ in tables)


def test_the_errors_are_those_of_the_paper() -> None:
    assert [lost("gelu", bits) for bits in (1, 2, 4)] == pytest.approx([0.29, 0.13, 0.036], abs=0.005)


@over_formulas
def test_the_levels_are_the_means_of_the_derivative_that_autograd_computes(formula: str) -> None:
    pieces, derivative = pieces_and_derivatives(formula, bits=2)
    means = [float(derivative[pieces == piece].mean()) for piece in range(4)]
    assert means == pytest.approx(list(derivative_levels(formula, 2)[1]), abs=0.01)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [1, 8, 1003])
def test_codes_are_packed_into_as_many_bits_and_come_back(bits: int, count: int) -> None:
    codes = torch.randint(0, 2**bits, (count,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.numel() == bits * -(-count // 8)
    assert torch.equal(unpack(packed, bits)[:count], codes)


def test_large_activations_are_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(stack(Functional), "few")
    monkeypatch.setattr("advisor.training.chunking._ON_CPU", 1024)
    in_parts = trained(stack(Functional), "few")
    assert all(torch.equal(in_parts[1][name], gradient) for name, gradient in whole[1].items())


KINDS: dict[str, Callable[[], nn.Module]] = {
    "functions": Functional,
    "GELU": functools.partial(sequential, nn.GELU),
    "tanh GELU": functools.partial(sequential, functools.partial(nn.GELU, approximate="tanh")),
    "SiLU": functools.partial(sequential, nn.SiLU),
    "SiLU in place": functools.partial(sequential, functools.partial(nn.SiLU, inplace=True)),
    "transformer layer": functools.partial(
        nn.TransformerEncoderLayer, 16, 2, 64, dropout=0.0, activation="gelu", batch_first=True
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_bit_equal_and_less_is_held(kind: str) -> None:
    plain, few = trained(stack(KINDS[kind])), trained(stack(KINDS[kind]), "few")
    assert torch.equal(plain[0], few[0])
    assert few[2] < plain[2]
    assert any(not torch.equal(few[1][name], plain[1][name]) for name in plain[1])


def test_what_is_held_of_an_activation_is_its_bits() -> None:
    plain, one, four = (
        trained(stack(KINDS["GELU"]), *settings, bits=bits)[2]
        for settings, bits in (((), 1), (("few",), 1), (("few",), 4))
    )
    values = 2 * 128 * 64
    one_table, four_table = 4 * (1 + 2), 4 * (15 + 16)
    assert plain - one == values * (4 - 1 / 8) - one_table
    assert four - one == values * 3 / 8 + four_table - one_table


@pytest.mark.parametrize("kind", KINDS)
def test_a_recomputed_activation_keeps_the_same_bits(kind: str) -> None:
    """Trap: what is caught in the forward pass only would be missing in the recomputation."""
    alone, together = trained(stack(KINDS[kind]), "few"), trained(stack(KINDS[kind]), "few", "checkpoint")
    assert alone[1].keys() == together[1].keys()
    assert all(torch.equal(alone[1][name], gradient) for name, gradient in together[1].items())


@pytest.mark.parametrize(
    "name", ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu", "silu"]
)
def test_the_activations_of_transformers_are_known(name: str) -> None:
    from transformers.activations import ACT2FN

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = ACT2FN[name]

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.activation(values).sum()

    values = torch.linspace(-3, 3, 1001)
    derivatives = []
    for few in (False, True):
        training = Training(Wrapped(), build_optimizer=lambda _: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))
        if few:
            FewBitActivations(training, bits=4)
        own = values.clone().requires_grad_()
        training.model(own).backward()
        assert own.grad is not None
        derivatives.append(own.grad)
    plain, changed = derivatives
    assert 0 < float((plain - changed).square().mean().sqrt()) < 0.1
    assert len(changed.unique()) <= 16


def test_gradients_keep_the_format_of_their_inputs_under_autocast() -> None:
    training = Training(gpt2())
    apply_settings(training, [use("few_bit_activation", bits=4), use("precision", dtype="bf16")])
    loss = training.forward(text())
    training.backward(loss)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in training.model.parameters())
    training.close()


def test_a_model_without_them_is_refused_by_name_and_by_the_worker() -> None:
    verdict = judge([use("few_bit_activation", bits=2)], facts=facts_of("convnet"), hardware=cpu())
    assert not verdict.applicable
    assert "ReLU keeps its output" in verdict.reason
    with pytest.raises(MethodRefusedError, match="Silent calls neither GELU nor SiLU"):
        apply_settings(Training(Silent()), [use("few_bit_activation", bits=2)])


def test_functions_are_seen_by_the_probe_where_there_is_no_module() -> None:
    facts = facts_of("convnet", function_counts={"silu": 3})
    assert judge([use("few_bit_activation", bits=2)], facts=facts, hardware=cpu()).applicable


def test_activations_that_need_no_gradient_are_left_alone_and_it_is_said() -> None:
    model = stack(KINDS["GELU"])
    model.blocks[0][0].requires_grad_(False)  # type: ignore[index]
    del model.blocks[1]
    training = Training(model)
    apply_settings(training, [use("few_bit_activation", bits=2)])
    for _ in range(2):
        training.step(torch.randn(8, 16))
    assert [note for note in training.notes if "changed nothing" in note] == training.notes[-1:]
    training.close()


def test_the_model_is_as_it_was_when_the_training_is_closed() -> None:
    model = gpt2()
    before = {name: module.forward for name, module in model.named_modules()}
    training = Training(model)
    apply_settings(training, [use("few_bit_activation", bits=2)])
    changed = {name for name, module in model.named_modules() if module.forward != before[name]}
    assert changed == {f"transformer.h.{layer}.mlp.act" for layer in range(4)}
    training.close()
    assert all(module.forward == before[name] for name, module in model.named_modules())
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_the_model_computes_with_its_own_weights(kind: str) -> None:
    training = Training(stack(KINDS[kind]))
    apply_settings(training, [use("few_bit_activation", bits=2)])
    copied = copy.deepcopy(training.model)
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.zero_()
        values = torch.randn(4, 2, 16)
        assert torch.equal(copied(values), stack(KINDS[kind])(values))
    training.close()
