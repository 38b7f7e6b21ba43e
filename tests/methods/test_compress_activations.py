"""Activations in fewer bits: which tensors, how far the gradients may be off, and whose random numbers are drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.methods.compose import apply_uses
from advisor.methods.training import Training
from advisor.methods.use import MethodUse, use
from tests.contract.observe import relative_error
from tests.methods.tiny import convnet, images, training_of

SETTINGS = [
    use("compress_activations", bits=8),
    use("compress_activations", bits=4),
    use("compress_activations", bits=2),
    use("fp8_activations", format="e4m3"),
    use("fp8_activations", format="e5m2"),
]
over_settings = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
TWO_BITS = use("compress_activations", bits=2)


class Model(nn.Module):
    """Calls a function with an input that requires a gradient, and sums what it returns with fixed weights."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) / 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = self.function(inputs @ self.weight, self.weight)
        return (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()


def gradient(function: Callable[..., torch.Tensor], uses: list[MethodUse], samples: int = 64) -> torch.Tensor:
    training = Training(Model(function))
    apply_uses(training, uses)
    training.backward(training.forward(torch.randn(samples, 64, generator=torch.Generator().manual_seed(1))))
    weight: Any = training.model.weight
    return weight.grad


def stored(function: Callable[..., torch.Tensor], setting: MethodUse) -> tuple[int, int]:
    """How many saved tensors there are, and how many of them come back changed."""
    training = Training(Model(function))
    apply_uses(training, [setting])
    pipeline = training.saved_tensors
    assert pipeline is not None
    pairs = []
    pack = pipeline.pack

    def watched(tensor: torch.Tensor) -> Any:
        packed = pack(tensor)
        pairs.append((tensor.detach().clone(), packed))
        return packed

    pipeline.pack = watched  # type: ignore[method-assign]
    training.forward(torch.randn(64, 64, generator=torch.Generator().manual_seed(1)))
    changed = [not torch.equal(pipeline.unpack(packed), before) for before, packed in pairs]
    return len(changed), sum(changed)


class TestWhatStaysExact:
    @over_settings
    @pytest.mark.parametrize(
        ("function", "coded"),
        [
            (lambda x, w: x.sin(), 1),
            (lambda x, w: x @ w, 1),
            (lambda x, w: x @ w.t(), 1),  # Transposed, a weight is another tensor on the same storage.
            (lambda x, w: functional.linear(x, w[:32]), 1),
            (lambda x, w: x.relu(), 1),  # For mask and sum alike: not compared but by the mask, below.
            (lambda x, w: functional.layer_norm(x, (64,)), 1),  # Its mean and deviation are not.
            (lambda x, w: functional.log_softmax(x, -1), 0),
            (lambda x, w: x * torch.ones(64, 64).sin(), 0),  # What needs no gradient is no activation.
            (lambda x, w: x[:, torch.randperm(64)], 0),
            (lambda x, w: functional.max_pool1d(x[None], 2)[0] * 2, 1),
            (lambda x, w: x[:, :8].sin(), 0),  # Fewer than 1024 values.
        ],
        ids=[
            "sin",
            "matmul",
            "transposed",
            "sliced",
            "relu",
            "norm",
            "log_softmax",
            "no_gradient",
            "index",
            "pool",
            "small",
        ],
    )
    def test_only_activations_are_coded(self, function: Any, coded: int, setting: MethodUse) -> None:
        seen, changed = stored(function, setting)
        # One is the product with fixed weights, another the first matrix product: both save what is no activation.
        assert seen >= 2
        assert changed <= coded
        if coded:
            assert changed == coded

    @over_settings
    def test_autocasts_copies_of_weights_stay(self, setting: MethodUse) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return functional.linear(x.detach(), w).float()

        assert stored(function, setting)[1] == 0

    @over_settings
    def test_a_relu_masks_the_same_gradients(self, setting: MethodUse) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x.relu()

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_settings
    def test_a_loss_is_not_taken_from_approximate_logarithms(self, setting: MethodUse) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(20 * x, torch.arange(64), reduction="none")

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_settings
    def test_fused_attention_is_not_computed_again_from_approximate_queries(self, setting: MethodUse) -> None:
        """Trap: errors stand in an exponent, and with 2 bits gradients are larger by many orders of magnitude."""

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            heads = x.view(1, 4, 16, 64)
            out = functional.scaled_dot_product_attention(6 * heads, heads * 2, heads * 3, is_causal=True)
            assert out.grad_fn is not None
            assert "ScaledDotProduct" in out.grad_fn.name()
            return out * w.mean()  # Saves the same tensor once more: it is not coded besides being kept.

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_settings
    def test_attention_that_is_not_fused_is_coded(self, setting: MethodUse) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            heads = x.view(1, 4, 16, 64)
            torch.manual_seed(0)
            return functional.scaled_dot_product_attention(heads, heads * 2, heads * 3, dropout_p=0.5)

        plain, changed = gradient(function, []), gradient(function, [setting])
        assert not torch.equal(changed, plain)
        assert float((changed - plain).norm() / plain.norm()) < 1.5

    @over_settings
    def test_a_model_without_activations_to_code_is_told_so_once(self, setting: MethodUse) -> None:
        training = Training(Model(lambda x, w: x.sum(1)), build_optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        apply_uses(training, [setting])
        for _ in range(2):
            training.step(torch.ones(64, 64))
        assert [note for note in training.notes if f"{setting.label} changed nothing" in note] == training.notes
        assert len(training.notes) == 1


@pytest.mark.parametrize(("setting", "expected"), [*zip(SETTINGS, (0.01, 0.2, 1.2, 0.03, 0.06), strict=True)], ids=str)
def test_the_gradient_of_a_deep_model_is_as_far_off_as_is_said(setting: MethodUse, expected: float) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = x + functional.gelu(functional.layer_norm(x, (64,)) @ w) @ w.t()
        return x

    plain = {"weight": gradient(function, [])}
    error = relative_error({"weight": gradient(function, [setting])}, plain)
    assert expected / 10 < error < expected


@over_settings
def test_the_random_numbers_of_the_model_are_not_shifted(setting: MethodUse) -> None:
    states, losses = [], []
    for uses in ([], [setting]):
        training = training_of("convnet")
        apply_uses(training, uses)
        torch.manual_seed(0)
        losses.append(training.forward(images(4)).detach())
        training.backward(training.forward(images(4)))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    assert torch.equal(*losses)  # Dropout draws in it: the forward pass is that of plain training.


def test_every_step_draws_other_numbers_and_a_resumed_one_the_same() -> None:
    training, resumed = training_of("convnet"), training_of("convnet")
    model, other = training.model, resumed.model
    for each in (training, resumed):
        apply_uses(each, [TWO_BITS])

    def gradients(one: Training, owner: nn.Module) -> torch.Tensor:
        owner.zero_grad()
        torch.manual_seed(0)
        one.backward(one.forward(images(4)))
        return torch.cat([p.grad.flatten() for p in owner.parameters() if p.grad is not None])

    first, second = gradients(training, model), gradients(training, model)
    assert not torch.equal(first, second)
    resumed.load_state_dict(copy.deepcopy(training.state_dict()))
    assert torch.equal(gradients(resumed, other), gradients(training, model))


def test_a_state_of_plain_training_is_loaded_too() -> None:
    training, plain = training_of("convnet"), training_of("convnet")
    apply_uses(training, [TWO_BITS])
    training.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert list(training.state_dict()["model"]) == list(convnet().state_dict())
