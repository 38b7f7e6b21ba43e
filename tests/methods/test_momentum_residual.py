"""Blocks with a momentum: the gradients of that recurrence, from activations that were not kept."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge
from advisor.methods.recompute import _reversible as reversible
from advisor.methods.recompute._reversible import MomentumRunner
from advisor.methods.setting import MethodSetting, use
from advisor.training.block_call import BlockCall
from advisor.training.training import Training
from tests.contract.observe import LiveBytes, relative_error
from tests.methods.tiny import MODELS, adamw, cpu, facts_of, training_of

CALL = BlockCall(None, (), {})
MOMENTA = (0.9, 0.99)


def momentum_residual(momentum: float = 0.9) -> MethodSetting:
    return use("momentum_residual", momentum=momentum)


class Block(nn.Module):
    """A residual block with BatchNorm and dropout."""

    def __init__(self, width: int = 16, dropout: float = 0.2) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.dropout(torch.tanh(self.norm(self.inner(hidden))))


class Remembering(Block):
    """Writes to what it is given, as an in-place activation before the first layer does, and remembers it."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        # In no collection of the module's: such are after a recomputation what they were before it.
        self.kept = types.SimpleNamespace(given=[])

    @property
    def given(self) -> list[torch.Tensor]:
        """What it was given in the forward pass, and in the backward pass."""
        given: list[torch.Tensor] = self.kept.given
        return given

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.given.append(hidden.detach().clone())
        return super().forward(nn.functional.leaky_relu(hidden, 0.9, inplace=True))


def stack(depth: int, make: Callable[[], nn.Module] = Block) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(make() for _ in range(depth))


def batch(width: int = 16) -> torch.Tensor:
    return torch.randn(8, width, generator=torch.Generator().manual_seed(1))


def kept_by_autograd(blocks: Sequence[nn.Module], hidden: torch.Tensor, momentum: float) -> torch.Tensor:
    """The same recurrence, written down as it is, with everything kept."""
    velocity = torch.zeros_like(hidden)
    for block in blocks:
        change = block(hidden.clone()).float() - hidden
        velocity = momentum * velocity + (1 - momentum) * change
        hidden = hidden + velocity
    return hidden


def gradients(blocks: nn.ModuleList, run: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    given = batch().requires_grad_()
    torch.manual_seed(2)
    run(given).square().sum().backward()
    assert given.grad is not None
    return {"input": given.grad, **{name: p.grad for name, p in blocks.named_parameters() if p.grad is not None}}


def inverted(blocks: nn.ModuleList, momentum: float) -> Callable[[torch.Tensor], torch.Tensor]:
    runner = MomentumRunner(blocks, momentum)
    return lambda hidden: runner(list(blocks), hidden, CALL)


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("depth", [1, 24])
def test_gradients_are_those_of_the_recurrence_with_everything_kept(depth: int, momentum: float) -> None:
    """Trap: other dropout masks, or the scale of running statistics, on the way back."""
    blocks, plain = stack(depth), stack(depth)
    measured = gradients(blocks, inverted(blocks, momentum))
    expected = gradients(plain, lambda hidden: kept_by_autograd(list(plain), hidden, momentum))
    assert relative_error(measured, expected) < 1e-4
    assert all(float((measured[name] - expected[name]).norm() / expected[name].norm()) < 1e-3 for name in expected)


def test_running_statistics_are_updated_once() -> None:
    blocks, plain = stack(3), stack(3)
    gradients(blocks, inverted(blocks, 0.9))
    gradients(plain, lambda hidden: kept_by_autograd(list(plain), hidden, 0.9))
    assert all(int(block.norm.num_batches_tracked) == 1 for block in blocks)
    for block, other in zip(blocks, plain, strict=True):
        assert torch.allclose(block.norm.running_mean, other.norm.running_mean, atol=1e-6)


def test_what_is_drawn_after_the_backward_pass_does_not_depend_on_it() -> None:
    drawn = []
    for momentum in (None, 0.9):
        blocks = stack(3)
        kept = inverted(blocks, momentum) if momentum else lambda hidden: kept_by_autograd(list(blocks), hidden, 0.9)  # noqa: B023
        gradients(blocks, kept)
        drawn.append(torch.rand(1))
    assert torch.equal(*drawn)


def drift(depth: int, momentum: float) -> float:
    """Largest error of what a block was given on the way back, relative to what it was given before."""
    blocks = stack(depth, Remembering)
    gradients(blocks, inverted(blocks, momentum))
    return max(float((again - once).norm() / once.norm()) for once, again in (block.given for block in blocks))


@pytest.mark.parametrize(("momentum", "depth"), [(0.9, 24), (0.9, 150), (0.99, 150)])
def test_inputs_are_found_again_within_rounding_however_many_blocks(momentum: float, depth: int) -> None:
    assert drift(depth, momentum) < 6e-6


def test_without_anchors_rounding_errors_would_grow_with_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reversible, "_BLOCKS_PER_ANCHOR", 10**6)
    assert drift(150, 0.9) > 1e-4


def test_what_was_lost_shows_where_a_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reversible, "_BLOCKS_PER_ANCHOR", 10**6)
    lost = []
    for depth in (8, 150):
        blocks = stack(depth)
        runner = MomentumRunner(blocks, 0.9)
        gradients(blocks, lambda hidden: runner(list(blocks), hidden, CALL))  # noqa: B023
        lost.append(float(*runner.lost))
    assert 0.0 < lost[0] < 1e-6 < 1e-4 < lost[1]


def test_blocks_that_cannot_be_inverted_are_refused_in_the_first_step() -> None:
    class Steep(nn.Sequential):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return 200.0 * super().forward(hidden)

    model = nn.Sequential(*(Steep(nn.Linear(16, 16), nn.Tanh()) for _ in range(12)))
    training = Training(model, compute_loss=lambda model, batch: model(batch).square().mean())
    apply_settings(training, [momentum_residual()])
    with pytest.raises(MethodRefusedError, match="rounding errors grow too fast"):
        training.step(batch())


def test_autocast_is_on_again_in_the_backward_pass() -> None:
    def under_autocast(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(hidden: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return function(hidden)

        return run

    blocks, plain, exact = (stack(8) for _ in range(3))
    measured = gradients(blocks, under_autocast(inverted(blocks, 0.9)))
    expected = gradients(plain, under_autocast(lambda hidden: kept_by_autograd(list(plain), hidden, 0.9)))
    unrounded = gradients(exact, lambda hidden: kept_by_autograd(list(exact), hidden, 0.9))
    error = relative_error(measured, expected)
    assert error < 1e-3
    assert relative_error(expected, unrounded) > error  # What autocast rounds shows; what is rounded twice would too.
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()


def test_blocks_in_16_bits_have_positions_in_32() -> None:
    blocks = stack(8, lambda: Remembering().bfloat16())
    runner = MomentumRunner(blocks, 0.9)
    given = batch().bfloat16().requires_grad_()
    hidden = runner(list(blocks), given, CALL)
    assert hidden.dtype == torch.bfloat16
    hidden.float().square().sum().backward()
    assert given.grad is not None
    for once, again in (block.given for block in blocks):
        assert float((again.float() - once.float()).norm() / once.float().norm()) < 0.003


def test_what_is_held_does_not_grow_with_the_depth() -> None:
    def held(depth: int) -> int:
        blocks = stack(depth, lambda: Block(64))
        runner = MomentumRunner(blocks, 0.99)
        live = LiveBytes()
        with live:
            hidden = runner(list(blocks), torch.ones(2048, 64), CALL)
        assert hidden.requires_grad
        return live.live()

    activation = 4 * 2048 * 64
    assert held(4) >= 2 * activation  # The last position and velocity.
    assert held(16) - held(4) < activation


class Narrowing(nn.Module):
    """Blocks of which one halves the width, as between the stages of a convolutional network."""

    def __init__(self, widths: Sequence[int] = (16, 16, 8, 8, 8)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Dropout(0.1)) for a, b in itertools.pairwise(widths)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.square().sum()


def test_a_block_that_changes_the_shape_runs_as_it_did_and_the_velocity_begins_anew() -> None:
    def recurrence(model: Narrowing, hidden: torch.Tensor) -> torch.Tensor:
        first, change, *rest = model.blocks
        hidden = change(kept_by_autograd([first], hidden, 0.9))
        return kept_by_autograd(rest, hidden, 0.9).square().sum()

    training, plain = Training(Narrowing()), Narrowing()
    apply_settings(training, [momentum_residual()])
    for _ in range(2):  # The first pass finds out which block it is.
        for each in (training.model, plain):
            each.zero_grad()
        torch.manual_seed(3)
        training.backward(training.forward((batch(),)))
        torch.manual_seed(3)
        recurrence(plain, batch()).backward()
        found = {name: p.grad for name, p in plain.named_parameters()}
        measured = [p.grad for p in training.model.parameters()]
        assert relative_error(dict(zip(found, measured, strict=True)), found) < 1e-5


def test_blocks_that_all_change_the_shape_are_refused_in_the_first_step() -> None:
    training = Training(Narrowing((16, 8, 4, 2)))
    apply_settings(training, [momentum_residual()])
    with pytest.raises(MethodRefusedError, match="none of the repeated blocks returns the shape"):
        training.step((batch(),))


def test_facts_refuse_what_is_no_chain_and_what_keeps_no_shape() -> None:
    for changes, reason in (
        ({"chain_reason": "block 1 is called first", "chain_length": 0}, "block 1 is called first"),
        ({"shape_keeping_blocks": 0}, "returns the shape"),
    ):
        verdict = judge([momentum_residual()], facts=facts_of("convnet", **changes), hardware=cpu())
        assert not verdict.applicable
        assert reason in verdict.reason
    assert facts_of("convnet").shape_keeping_blocks == 3  # The first makes 32 channels of 3.
    unseen = facts_of("convnet", shape_keeping_blocks=0, first_loss=None)
    assert judge([momentum_residual()], facts=unseen, hardware=cpu()).applicable


def test_a_block_that_changes_its_mind_about_the_shape_is_refused() -> None:
    class Fickle(nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(hidden)[: 1 if self.calls > 1 else None]

    runner = MomentumRunner(nn.ModuleList(), 0.9)
    blocks = [Fickle(16, 16)]
    runner(blocks, batch(), CALL)
    with pytest.raises(MethodRefusedError, match="in every pass or in none"):
        runner(blocks, batch(), CALL)


def test_evaluation_has_the_momentum_too() -> None:
    training = Training(Narrowing(), build_optimizer=adamw)
    apply_settings(training, [momentum_residual()])
    training.model.eval()
    recorded = float(training.forward((batch(),)).detach())
    training.model.train()
    assert float(training.evaluate(lambda model: model(batch()))) == pytest.approx(recorded, rel=1e-6)


def test_evaluation_before_the_first_step_finds_out_which_blocks_change_the_shape() -> None:
    evaluated, stepped = Training(Narrowing(), build_optimizer=adamw), Training(Narrowing(), build_optimizer=adamw)
    for training in (evaluated, stepped):
        apply_settings(training, [momentum_residual()])
        training.model.eval()
    before = float(evaluated.evaluate(lambda model: model(batch())))
    assert before == pytest.approx(float(stepped.forward((batch(),)).detach()), rel=1e-6)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("momentum", MOMENTA)
def test_losses_fall_as_in_plain_training(model: str, momentum: float) -> None:
    def fallen(*settings: MethodSetting) -> float:
        training = training_of(model)
        apply_settings(training, settings)
        torch.manual_seed(1)
        losses = [float(training.step(MODELS[model][1](4))) for _ in range(20)]
        return losses[0] - losses[-1]

    plain = fallen()
    assert 0.3 * plain < fallen(momentum_residual(momentum)) < 3 * plain


def test_a_second_backward_pass_over_the_same_graph_gives_the_same_gradients() -> None:
    blocks = stack(4)
    hidden = inverted(blocks, 0.9)(batch())
    loss = hidden.square().sum()
    found = [torch.autograd.grad(loss, list(blocks.parameters()), retain_graph=True) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_frozen_blocks_are_passed_through() -> None:
    blocks = stack(3)
    for parameter in blocks[1].parameters():
        parameter.requires_grad_(False)
    plain = stack(3)
    measured = gradients(blocks, inverted(blocks, 0.9))
    expected: dict[str, Any] = gradients(plain, lambda hidden: kept_by_autograd(list(plain), hidden, 0.9))
    assert {name for name in expected if name not in measured} == {f"1.{n}" for n, _ in plain[1].named_parameters()}
    assert relative_error(measured, {name: expected[name] for name in measured}) < 1e-4
