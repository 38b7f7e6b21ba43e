"""Recomputation draws the random numbers of the forward pass. Each trap here gives wrong gradients in silence."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from advisor.methods.compose import apply_settings
from advisor.methods.recompute import _selective_checkpoint as selective_checkpoint
from advisor.methods.setting import MethodSetting, use
from advisor.training.random_state import further_generators, replaying
from advisor.training.recompute import recompute_modules
from advisor.training.training import Training
from tests.methods.tiny import adamw, gpt2

WIDTH = 16
EVERY_BLOCK = use("checkpoint", every=1)
ELEMENTWISE = use("selective_checkpoint", recompute="elementwise")
ATTENTION = use("selective_checkpoint", recompute="attention")


def trained(model: nn.Module, settings: list[MethodSetting], blocks: tuple[type, ...]) -> dict[str, torch.Tensor]:
    """The parameters after two steps. A second step sees what the first left in the generators."""
    training = Training(model, compute_loss=squared, build_optimizer=adamw, blocks=blocks)
    apply_settings(training, settings)
    torch.manual_seed(1)
    for _ in range(2):
        training.step(torch.ones(8, WIDTH))
    return dict(training.state_dict()["model"])


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()  # type: ignore[no-any-return]


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in right)


@pytest.fixture(scope="module")
def runs() -> Iterator[list[float]]:
    """Defines the operator; holds the probability of each of its runs."""
    seen: list[float] = []

    def run(inputs: torch.Tensor, dropout_p: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(dropout_p)
        mask = torch.bernoulli(torch.full_like(inputs, 1 - dropout_p)) if dropout_p else torch.ones_like(inputs)
        return inputs * mask, mask

    with torch.library._scoped_library("momadvise_tests", "DEF") as library:
        library.define("attention(Tensor inputs, float dropout_p=0.) -> (Tensor, Tensor)")
        library.impl("attention", run, "CPU")
        torch.library.register_autograd(
            "momadvise_tests::attention",
            lambda ctx, gradient, _: (gradient * ctx.saved_tensors[0], None),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
            lib=library,
        )
        yield seen


class TestFusedDropout:
    """An attention kernel with dropout inside, here an operator for CPUs with the same argument ``dropout_p``."""

    @pytest.fixture(autouse=True)
    def keep_it(self, runs: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        runs.clear()
        operators = frozenset({torch.ops.aten.addmm.default, torch.ops.momadvise_tests.attention.default})
        monkeypatch.setattr(selective_checkpoint, "_EXPENSIVE", operators)

    class Block(nn.Module):
        def __init__(self, dropout: dict[str, float]) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.dropout = nn.Dropout(0.5)
            self.attention_dropout = dropout

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden, _ = torch.ops.momadvise_tests.attention(self.linear(inputs), **self.attention_dropout)
            return torch.tanh(self.dropout(hidden))

    def build(self, **dropout: float) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[self.Block(dropout) for _ in range(3)])

    def test_the_trap_a_kept_operator_does_not_advance_the_generator(self) -> None:
        keep = [torch.ops.momadvise_tests.attention.default]

        def gradient(*, selective: bool) -> torch.Tensor:
            block = self.build(dropout_p=0.5)[0]  # type: ignore[index]
            torch.manual_seed(1)
            inputs = torch.ones(8, WIDTH, requires_grad=True)
            if selective:
                contexts = lambda: create_selective_checkpoint_contexts(keep)  # noqa: E731
                out = torch_checkpoint(block, inputs, use_reentrant=False, context_fn=contexts)
            else:
                out = block(inputs)
            return torch.autograd.grad(out.sum(), inputs)[0]

        assert not torch.equal(gradient(selective=True), gradient(selective=False))

    def test_masks_drawn_after_it_are_those_of_the_forward_pass(self) -> None:
        plain = trained(self.build(dropout_p=0.5), [], (self.Block,))
        assert equal(trained(self.build(dropout_p=0.5), [ELEMENTWISE], (self.Block,)), plain)

    @pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.0}], ids=["left out", "zero"])
    def test_without_dropout_it_is_kept_and_not_run_again(self, dropout: dict[str, float], runs: list[float]) -> None:
        trained(self.build(**dropout), [ELEMENTWISE], (self.Block,))
        assert runs == [0.0] * 3 * 2

    @pytest.mark.parametrize(
        ("args", "kwargs", "kept"),
        [((0.1,), {}, False), ((), {"dropout_p": 0.1}, False), ((0.0,), {}, True), ((), {}, True)],
        ids=["by position", "by keyword", "zero", "left out"],
    )
    def test_its_dropout_is_found_however_it_is_given(
        self, args: tuple[float, ...], kwargs: dict[str, float], kept: bool
    ) -> None:
        operator = torch.ops.momadvise_tests.attention.default
        decision = selective_checkpoint._keep_expensive(None, operator, torch.ones(1), *args, **kwargs)
        assert decision.name == ("MUST_SAVE" if kept else "PREFER_RECOMPUTE")


def test_every_fused_attention_of_torch_names_its_dropout_as_expected() -> None:
    names = [name for name in selective_checkpoint._EXPENSIVE_NAMES.split() if "attention" in name]
    operators = [getattr(torch.ops.aten, name).default for name in names if hasattr(torch.ops.aten, name)]
    assert operators
    for operator in operators:
        assert selective_checkpoint._dropout_argument(operator) is not None, operator


class TestOtherGenerators:
    """A CUDA device's generator, here one of our own: torch's checkpointing knows neither (by keyword)."""

    class SelfAttention(nn.Module):
        def __init__(self, generator: torch.Generator) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.generator = generator

        def forward(self, *, hidden_states: torch.Tensor) -> torch.Tensor:
            hidden = torch.tanh(self.query(hidden_states) + self.key(hidden_states)) * self.value(hidden_states)
            return hidden * torch.bernoulli(torch.full_like(hidden, 0.5), generator=self.generator)

    class Block(nn.Module):
        def __init__(self, attention: nn.Module) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + self.attention(hidden_states=inputs)  # type: ignore[no-any-return]

    def build(self) -> tuple[nn.Module, torch.Generator]:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        return nn.Sequential(*[self.Block(self.SelfAttention(generator)) for _ in range(3)]), generator

    def trained(self, settings: list[MethodSetting], monkeypatch: pytest.MonkeyPatch, *, known: bool) -> Any:
        model, generator = self.build()
        monkeypatch.setattr("advisor.training.recompute.further_generators", lambda _: [generator] if known else [])
        return trained(model, settings, (self.Block,)), generator.get_state()

    @pytest.mark.parametrize("method", [EVERY_BLOCK, ELEMENTWISE, ATTENTION], ids=lambda method: method.label)
    def test_a_module_called_by_keyword_draws_the_same_mask_again(
        self, method: MethodSetting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, after = self.trained([], monkeypatch, known=True)
        changed, after_changed = self.trained([method], monkeypatch, known=True)
        assert equal(changed, plain)
        assert torch.equal(after_changed, after), "the recomputation moved the generator"

    def test_the_trap_torch_alone_draws_another_mask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, _ = self.trained([], monkeypatch, known=False)
        assert not equal(self.trained([EVERY_BLOCK], monkeypatch, known=False)[0], plain)

    def test_a_region_can_be_recomputed_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, generator = self.build()
        monkeypatch.setattr("advisor.training.recompute.further_generators", lambda _: [generator])
        recompute_modules(model, list(model))  # type: ignore[call-overload]
        loss, parameters = squared(model, torch.ones(8, WIDTH)), list(model.parameters())
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss, parameters)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def test_a_model_on_a_cpu_has_no_cuda_generator(self) -> None:
        assert not any(isinstance(one, torch.Generator) for one in further_generators(gpt2(1)))


def test_regions_between_which_nothing_is_drawn_share_one_state() -> None:
    """A CPU's state takes 5 KB: one for each of a thousand nested regions would outweigh small activations."""
    pairs = [replaying([torch.default_generator], (contextlib.nullcontext(), contextlib.nullcontext())) for _ in "abc"]
    for number, (forward, _) in enumerate(pairs):
        if number == 2:
            torch.rand(())
        with forward:
            pass
    first, second, third = (recompute._make.args[1][0] for _, recompute in pairs)  # type: ignore[attr-defined]
    assert first is second
    assert not torch.equal(first, third)


class Masked(nn.Module):
    """A block that multiplies by a mask drawn from somewhere."""

    def __init__(self, draw: str) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.own = torch.Generator().manual_seed(1)
        self.numpy = numpy.random.default_rng(1)
        self.old_numpy = [numpy.random.RandomState(1)]
        self.python = random.Random(1)
        self.draw = draw

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(inputs)
        drawn = {
            "own": lambda: torch.rand(WIDTH, generator=self.own),
            "numpy": lambda: torch.from_numpy(self.numpy.random(WIDTH)).float(),
            "old_numpy": lambda: torch.from_numpy(self.old_numpy[0].rand(WIDTH)).float(),
            "python": lambda: torch.tensor([self.python.random() for _ in range(WIDTH)]),
            "common numpy": lambda: torch.from_numpy(numpy.random.rand(WIDTH)).float(),
            "common python": lambda: torch.tensor([random.random() for _ in range(WIDTH)]),
        }[self.draw]()
        return inputs + hidden * (drawn > 0.5)


@pytest.mark.parametrize("draw", ["own", "numpy", "old_numpy", "python", "common numpy", "common python"])
@pytest.mark.parametrize("method", [EVERY_BLOCK, ELEMENTWISE], ids=lambda method: method.label)
def test_other_generators_are_replayed_as_well(draw: str, method: MethodSetting) -> None:
    """Trap: with a block's own generator "exact" checkpointing gave gradients that were off by 84 %."""

    def gradients(settings: list[MethodSetting]) -> tuple[dict[str, torch.Tensor], float]:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        return trained(nn.Sequential(*[Masked(draw) for _ in range(3)]), settings, (Masked,)), random.random()

    plain, after = gradients([])
    changed, after_changed = gradients([method])
    assert equal(changed, plain)
    assert after_changed == after, "what is drawn later does not depend on what was recomputed"
