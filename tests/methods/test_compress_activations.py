"""Activations in fewer bits: which tensors, how far the gradients may be off, and whose random numbers are drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
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
over_coders = pytest.mark.parametrize("setting", [TWO_BITS, SETTINGS[3]], ids=lambda setting: setting.label)


class Model(nn.Module):
    """Calls a function with an input that requires a gradient, and sums what it returns with fixed weights."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) / 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = self.function(inputs @ self.weight, self.weight)
        return (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()


class Reciprocal(torch.autograd.Function):
    """A function of the user's own."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values)
        return 1 / values

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (values,) = ctx.saved_tensors
        return -gradients[0] / values**2


def between_zero_and_one(x: torch.Tensor) -> torch.Tensor:
    """Shifted and scaled, which saves nothing of ``x``; the smallest value is 1e-6, next to which all is large."""
    x = x - x.detach().min()
    return x / (1.01 * x.detach().max()) + 1e-6


def in_place(p: torch.Tensor) -> torch.Tensor:
    out = torch.ones(64, 64)
    out[:, :32] /= p[:, 32:]
    return out


DELICATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log": torch.log,
    "log1p": lambda p: torch.log1p(-p),
    "quotient": lambda p: 1 / p,
    "divisor": lambda p: torch.ones(64, 64) / p,
    "into_a_view": in_place,
    "sqrt": torch.sqrt,
    "root": lambda p: p**0.3,
    "normalize": lambda p: functional.normalize(p, p=1.0),
    "cross_entropy_of_probabilities": lambda p: functional.binary_cross_entropy(
        p, torch.full_like(p, 0.5), reduction="none"
    ),
    "arc_sine": torch.asin,
    "logsumexp": lambda p: torch.logsumexp(20 * p.t(), 0),
    "largest": lambda p: p.amax(1) * torch.ones(64, 1),
    "norm": lambda p: torch.linalg.vector_norm(p.t()[:, None] * torch.ones(1, 64, 1), dim=2),
}


def gradient(function: Callable[..., torch.Tensor], settings: list[MethodSetting], samples: int = 64) -> torch.Tensor:
    training = Training(Model(function))
    apply_settings(training, settings)
    training.backward(training.forward(torch.randn(samples, 64, generator=torch.Generator().manual_seed(1))))
    weight: Any = training.model.weight
    return weight.grad


def stored(function: Callable[..., torch.Tensor], setting: MethodSetting) -> tuple[int, int]:
    """How many saved tensors there are, and how many of them come back changed."""
    training = Training(Model(function))
    apply_settings(training, [setting])
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
    def test_only_activations_are_coded(self, function: Any, coded: int, setting: MethodSetting) -> None:
        seen, changed = stored(function, setting)
        # One is the product with fixed weights, another the first matrix product: both save what is no activation.
        assert seen >= 2
        assert changed <= coded
        if coded:
            assert changed == coded

    @over_settings
    def test_autocasts_copies_of_weights_stay(self, setting: MethodSetting) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return functional.linear(x.detach(), w).float()

        assert stored(function, setting)[1] == 0

    @over_settings
    def test_a_relu_masks_the_same_gradients(self, setting: MethodSetting) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x.relu()

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_settings
    def test_a_loss_is_not_taken_from_approximate_logarithms(self, setting: MethodSetting) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(20 * x, torch.arange(64), reduction="none")

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_settings
    def test_fused_attention_is_not_computed_again_from_approximate_queries(self, setting: MethodSetting) -> None:
        """Trap: errors stand in an exponent, and with 2 bits gradients are larger by many orders of magnitude."""

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            heads = x.view(1, 4, 16, 64)
            out = functional.scaled_dot_product_attention(6 * heads, heads * 2, heads * 3, is_causal=True)
            assert out.grad_fn is not None
            assert "ScaledDotProduct" in out.grad_fn.name()
            return out * w.mean()  # Saves the same tensor once more: it is not coded besides being kept.

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_coders
    @pytest.mark.parametrize("name", DELICATE)
    def test_what_a_small_error_would_blow_up_is_kept(self, name: str, setting: MethodSetting) -> None:
        """Trap: of a value near zero that comes back as almost zero, the gradient of a logarithm is far too large."""

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return DELICATE[name](between_zero_and_one(x))

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_coders
    @pytest.mark.parametrize(
        ("function", "coded"),
        [
            (lambda p, q: p / q, 1),  # The numerator is a factor of the divisor's gradient.
            (lambda p, q: p.div(other=q), 1),
            (lambda p, q: p**3 + q, 1),
            (lambda p, q: p.pow(-1.0) + q, 0),
            (lambda p, q: p.log() + p.sin(), 0),  # Who else saves it gets it as it is.
        ],
        ids=["quotient", "keyword", "cube", "reciprocal", "twice"],
    )
    def test_factors_and_polynomials_are_still_coded(self, function: Any, coded: int, setting: MethodSetting) -> None:
        def of_two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return function(between_zero_and_one(x), between_zero_and_one(x.t()))

        assert stored(of_two, setting)[1] == coded

    @over_coders
    def test_a_normalization_with_a_delicate_result_inside_is_still_coded(self, setting: MethodSetting) -> None:
        """Its reciprocal root is one number per sample; how often its input is saved depends on its kernel."""

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return functional.rms_norm(between_zero_and_one(x), (64,))

        assert stored(function, setting)[1] > 0

    @over_coders
    def test_attention_modules_of_torch_are_seen_to_be_fused(self, setting: MethodSetting) -> None:
        attention = nn.MultiheadAttention(64, 4, batch_first=True).requires_grad_(False)

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            heads = 8 * x.view(1, 64, 64)
            return attention(heads, heads, heads, need_weights=False)[0]

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_coders
    def test_what_unknown_functions_save_is_kept(self, setting: MethodSetting) -> None:
        """Attention of other libraries computes probabilities again; its functions look like any other."""

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return Reciprocal.apply(between_zero_and_one(x))  # type: ignore[no-untyped-call,no-any-return]

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    @over_coders
    def test_inputs_of_compiled_regions_are_kept(self, setting: MethodSetting) -> None:
        """So are those of flex_attention, which is fast only if compiled and has no backward pass on a CPU."""
        compiled = torch.compile(lambda p: p.log(), backend="aot_eager")

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            out = compiled(between_zero_and_one(x))
            assert isinstance(out, torch.Tensor)
            assert out.grad_fn is not None
            assert "Compiled" in out.grad_fn.name()
            return out

        assert torch.equal(gradient(function, [setting]), gradient(function, []))

    def test_torchs_compiler_leaves_the_watch_alone_after_a_graph_break(self) -> None:
        """Trap: compiled as if it were the model's, it takes itself for traced and properties for constants."""

        def broken(p: torch.Tensor) -> torch.Tensor:
            p = p + 0.0
            torch._dynamo.graph_break()
            assert p.requires_grad is True
            assert p.dim() == 2
            return p.log()

        compiled = torch.compile(broken, backend="aot_eager")

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            out = compiled(between_zero_and_one(x))
            assert isinstance(out, torch.Tensor)
            return out

        assert torch.equal(gradient(function, [TWO_BITS]), gradient(function, []))

    @over_coders
    def test_what_a_region_is_recomputed_from_is_coded(self, setting: MethodSetting) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            out = checkpoint(torch.sin, x, use_reentrant=False)
            assert isinstance(out, torch.Tensor)
            return out

        assert stored(function, setting)[1] == 1

    @over_settings
    def test_attention_that_is_not_fused_is_coded(self, setting: MethodSetting) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            heads = x.view(1, 4, 16, 64)
            torch.manual_seed(0)
            return functional.scaled_dot_product_attention(heads, heads * 2, heads * 3, dropout_p=0.5)

        plain, changed = gradient(function, []), gradient(function, [setting])
        assert not torch.equal(changed, plain)
        assert float((changed - plain).norm() / plain.norm()) < 1.5

    @over_settings
    def test_a_model_without_activations_to_code_is_told_so_once(self, setting: MethodSetting) -> None:
        training = Training(Model(lambda x, w: x.sum(1)), build_optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        apply_settings(training, [setting])
        for _ in range(2):
            training.step(torch.ones(64, 64))
        assert [note for note in training.notes if f"{setting.words} changed nothing" in note] == training.notes
        assert len(training.notes) == 1


@pytest.mark.parametrize(("setting", "expected"), [*zip(SETTINGS, (0.01, 0.2, 1.2, 0.03, 0.06), strict=True)], ids=str)
def test_the_gradient_of_a_deep_model_is_as_far_off_as_is_said(setting: MethodSetting, expected: float) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = x + functional.gelu(functional.layer_norm(x, (64,)) @ w) @ w.t()
        return x

    plain = {"weight": gradient(function, [])}
    error = relative_error({"weight": gradient(function, [setting])}, plain)
    assert expected / 10 < error < expected


@over_settings
def test_the_random_numbers_of_the_model_are_not_shifted(setting: MethodSetting) -> None:
    states, losses = [], []
    for settings in ([], [setting]):
        training = training_of("convnet")
        apply_settings(training, settings)
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
        apply_settings(each, [TWO_BITS])

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
    apply_settings(training, [TWO_BITS])
    training.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert list(training.state_dict()["model"]) == list(convnet().state_dict())
