"""Nothing keeps what normalizations and activations return, and nobody notices."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.recompute.selective_checkpoint import is_cheap_module
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.contract.observe import LiveBytes, observe
from tests.methods.tiny import MODELS, adamw, images, training_of

NORMALIZATION = use("selective_checkpoint", recompute="normalization")
both = pytest.mark.parametrize("name", MODELS)


def training_with(model: Callable[[], nn.Module], *, changed: bool) -> Training:
    torch.manual_seed(0)
    training = Training(model(), compute_loss=lambda model, batch: model(batch).square().mean(), build_optimizer=adamw)
    if changed:
        apply_settings(training, [NORMALIZATION])
    return training


def held(training: Training, batch: Any) -> int:
    with LiveBytes() as live:
        loss = training.forward(batch)
    assert loss.requires_grad
    return live.live()


def gradients(training: Training, batch: Any) -> list[torch.Tensor]:
    training.backward(training.forward(batch))
    return [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]


def assert_the_same_with_less(model: Callable[[], nn.Module], batch: torch.Tensor, less: int | None) -> None:
    """Gradients to the bit, and fewer bytes held: so many, or any number."""
    plain, changed = training_with(model, changed=False), training_with(model, changed=True)
    saved = held(plain, batch) - held(changed, batch)
    # Beside these there are a mean or a counter of a normalization, and a number for each output.
    assert abs(saved - less) < ONE / 2 if less is not None else saved > 0
    plain, changed = training_with(model, changed=False), training_with(model, changed=True)
    pairs = zip(gradients(changed, batch), gradients(plain, batch), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


BATCH = torch.linspace(-1.0, 1.0, 32 * 8).view(32, 8)
ONE = BATCH.nbytes


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.function(self, batch)


class TestWhatIsHeld:
    def test_a_normalization_and_its_activation_leave_only_their_input(self) -> None:
        def model() -> nn.Module:
            return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))

        # Of three tensors (what the normalization, the activation and the last layer read) one is left.
        assert_the_same_with_less(model, BATCH, 2 * ONE)

    def test_an_activation_in_place(self) -> None:
        def model() -> nn.Module:
            return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 8))

        assert_the_same_with_less(model, BATCH, ONE)

    def test_the_convolutional_network_keeps_no_activation_output(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = observe("convnet", [], monkeypatch, samples=8).held_bytes
        image = 8 * 32 * 32 * 32 * 4
        saved = plain - observe("convnet", [NORMALIZATION], monkeypatch, samples=8).held_bytes
        assert saved == pytest.approx(4 * image, rel=0.001)

    def test_a_view_of_an_output(self) -> None:
        def model() -> nn.Module:
            return Lambda(
                lambda self, batch: self.last(self.norm(self.first(batch)).view(16, 2, 8).transpose(0, 1)[:, 1:]),
                first=nn.Linear(8, 8), norm=nn.LayerNorm(8), last=nn.Linear(8, 8),
            )  # fmt: skip

        assert_the_same_with_less(model, BATCH, None)

    def test_a_reader_that_takes_no_part_in_the_gradient(self) -> None:
        def gate(self: Any, batch: torch.Tensor) -> torch.Tensor:
            hidden = self.first(batch)
            return hidden * self.activation(hidden).detach()  # type: ignore[no-any-return]

        def model() -> nn.Module:
            return Lambda(gate, first=nn.Linear(8, 8), activation=nn.Sigmoid())

        # What the product keeps is recomputed, from an input that nobody kept otherwise.
        assert_the_same_with_less(model, BATCH, 0)


class TestWhatStaysTheSame:
    def test_what_the_loss_does_not_use_is_let_go(self) -> None:
        unused: list[weakref.ref[torch.Tensor]] = []

        def forked(self: Any, batch: torch.Tensor) -> torch.Tensor:
            hidden = self.first(batch)
            unused.append(weakref.ref(hidden.exp()))  # It keeps what it returned.
            return self.norm(hidden)  # type: ignore[no-any-return]

        training = training_with(lambda: Lambda(forked, first=nn.Linear(8, 8), norm=nn.LayerNorm(8)), changed=True)
        training.step(BATCH)
        gc.collect()
        assert [reference() for reference in unused] == [None]

    def test_running_statistics_are_updated_once(self) -> None:
        training = training_of("convnet")
        apply_settings(training, [NORMALIZATION])
        training.step(images(4))
        counts = {int(b) for n, b in training.model.named_buffers() if n.endswith("num_batches_tracked")}
        assert counts == {1}

    @both
    def test_no_matrix_product_or_convolution_runs_again(self, name: str) -> None:
        flops = []
        for settings in ([], [NORMALIZATION]):
            training = training_of(name)
            apply_settings(training, settings)
            with FlopCounterMode(display=False) as counter:
                training.step(MODELS[name][1](2))
            flops.append(counter.get_total_flops())
        assert flops[0] == flops[1] > 0

    @both
    def test_a_graph_can_be_used_twice(self, name: str) -> None:
        training = training_of(name)
        apply_settings(training, [NORMALIZATION])
        loss = training.forward(MODELS[name][1](2))
        parameters = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss, parameters)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    @both
    def test_evaluation_outside_of_a_step(self, name: str) -> None:
        training, batch = training_of(name), MODELS[name][1](2)
        plain = training.evaluate(lambda model: training.compute_loss(model, batch))
        apply_settings(training, [NORMALIZATION])
        assert torch.equal(training.evaluate(lambda model: training.compute_loss(model, batch)), plain)

    def test_a_region_that_the_model_recomputes_itself(self) -> None:
        def model() -> nn.Module:
            inner = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
            return Lambda(lambda self, batch: checkpoint(self.inner, batch, use_reentrant=False), inner=inner)

        plain, changed = training_with(model, changed=False), training_with(model, changed=True)
        pairs = zip(gradients(changed, BATCH), gradients(plain, BATCH), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)

    def test_a_kept_tensor_that_is_written_to_is_an_error_as_ever(self) -> None:
        def writing(self: Any, batch: torch.Tensor) -> torch.Tensor:
            hidden = self.first(batch)
            product = self.activation(hidden) * hidden
            hidden.add_(1.0)
            return product  # type: ignore[no-any-return]

        training = training_with(lambda: Lambda(writing, first=nn.Linear(8, 8), activation=nn.Sigmoid()), changed=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            training.backward(training.forward(BATCH))


class TestWhatIsRefused:
    def test_a_model_without_such_modules(self) -> None:
        with pytest.raises(MethodRefusedError, match="no normalization or activation modules"):
            training_with(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), changed=True)

    def test_a_model_in_which_nobody_keeps_their_outputs_is_told(self) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        training = Training(model, compute_loss=lambda model, batch: model(batch).sum(), build_optimizer=adamw)
        apply_settings(training, [NORMALIZATION])
        for _ in range(2):
            training.step(BATCH)
        (note,) = training.notes
        assert note.startswith("selective_checkpoint normalization changed nothing")

    @pytest.mark.parametrize(
        ("name", "cheap"),
        [
            ("torch.nn.BatchNorm2d", True),
            ("torch.nn.ReLU", True),
            ("torch.nn.SiLU", True),
            ("transformers.activations.NewGELUActivation", True),
            ("transformers.models.llama.modeling_llama.LlamaRMSNorm", True),
            ("torch.nn.RReLU", False),  # Draws random numbers.
            ("torch.nn.Softmax", False),
            ("torch.nn.Linear", False),
            ("torch.nn.Dropout", False),
            ("torch.nn.utils.parametrizations._SpectralNorm", False),
            ("torch.nn.MultiheadAttention", False),
        ],
    )
    def test_which_modules_are_meant(self, name: str, cheap: bool) -> None:
        assert is_cheap_module(name) == cheap
