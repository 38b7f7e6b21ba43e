"""Regions of several blocks, alone and inside of one another, do once what must be done once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.contract.observe import observe
from tests.methods.test_chain import hidden_batch, looping, scaling_between
from tests.methods.tiny import MODELS, ConvBlock, adamw, cpu, facts_of, gpt2, images, text, training_of

RESIDUAL = use("residual_checkpoint", blocks=2, inside="everything")
STARRED = use("residual_checkpoint", blocks=2, inside="inputs")
SQRT = use("sqrt_checkpoint")
RECURSIVE = use("recursive_checkpoint")
ALL = (RESIDUAL, STARRED, SQRT, RECURSIVE)
each = pytest.mark.parametrize("method", ALL, ids=lambda method: method.label)


def flops(training: Training, batch: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        training.step(batch)
    return int(counter.get_total_flops())


class TestOnce:
    @each
    def test_running_statistics_are_updated_once_on_the_models_own_buffers(self, method: MethodSetting) -> None:
        training = training_of("convnet")
        apply_settings(training, [method])
        before = [id(buffer) for buffer in training.model.buffers()]
        training.step(images(4))
        counts = {int(b) for n, b in training.model.named_buffers() if n.endswith("num_batches_tracked")}
        assert counts == {1}
        assert [id(buffer) for buffer in training.model.buffers()] == before

    @each
    def test_what_is_drawn_after_the_backward_pass_does_not_depend_on_it(self, method: MethodSetting) -> None:
        drawn = []
        for settings in ([], [method]):
            training = training_of("convnet")
            apply_settings(training, settings)
            torch.manual_seed(0)
            training.step(images(2))
            drawn.append(torch.rand(()))
        assert torch.equal(*drawn)

    @each
    def test_a_region_can_be_recomputed_twice(self, method: MethodSetting) -> None:
        training = training_of("convnet")
        apply_settings(training, [method])
        loss = training.forward(images(2))
        parameters = list(training.model.parameters())
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss, parameters)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    @each
    def test_two_passes_before_one_backward_pass(self, method: MethodSetting) -> None:
        states = []
        for settings in ([], [method]):
            training = training_of("gpt2")
            apply_settings(training, settings)
            torch.manual_seed(0)
            losses = [training.forward(text(2, 16, seed=seed)) for seed in (0, 1)]
            training.backward(losses[0] + losses[1])
            training.optimizer_step()
            states.append(training.state_dict()["model"])
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


class TestWork:
    """Measured in arithmetic, of eight blocks without their head."""

    @staticmethod
    def passes_again(*settings: MethodSetting) -> float:
        def training() -> Training:
            torch.manual_seed(0)
            blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]
            return Training(
                nn.Sequential(*blocks), compute_loss=lambda model, batch: model(batch).sum(), build_optimizer=adamw
            )

        forward = 8 * 2 * 2 * 8 * 8
        changed = training()
        apply_settings(changed, settings)
        return (flops(changed, hidden_batch()) - flops(training(), hidden_batch())) / forward

    def test_segments_run_once_more(self) -> None:
        assert self.passes_again(RESIDUAL) == self.passes_again(SQRT) == 1.0

    def test_segments_that_keep_their_inputs_run_nearly_twice_more(self) -> None:
        assert self.passes_again(STARRED) == 1.5

    def test_halves_run_half_the_logarithm_and_once_more(self) -> None:
        assert self.passes_again(RECURSIVE) == (1 + 3) / 2  # Of eight blocks, whose logarithm is three.


class TestMemory:
    def test_more_is_freed_the_less_inputs_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order = [
            [],
            [use("checkpoint", every=1)],
            [use("residual_checkpoint", blocks=2, inside="everything")],
            [use("residual_checkpoint", blocks=4, inside="everything")],
        ]
        held = [observe("gpt2", settings, monkeypatch).held_bytes for settings in order]
        assert held == sorted(held, reverse=True)
        assert len(set(held)) == 4

    @each
    def test_the_key_value_cache_is_off_while_training(self, method: MethodSetting) -> None:
        training = Training(gpt2(), build_optimizer=adamw)
        apply_settings(training, [method])
        config: Any = training.model.config
        assert config.use_cache is False
        training.close()
        assert config.use_cache is True


class TestRefusals:
    @each
    def test_blocks_that_are_no_chain_are_refused_before_any_trial_and_in_the_first_pass(
        self, method: MethodSetting
    ) -> None:
        reason = "block 1 is not called on what the block before it returned"
        verdict = judge([method], facts=facts_of("gpt2", chain_length=0, chain_reason=reason), hardware=cpu())
        assert not verdict.applicable
        assert reason in verdict.reason
        training = looping(scaling_between)
        apply_settings(training, [method])
        with pytest.raises(MethodRefusedError, match=reason):
            training.step(hidden_batch())

    @pytest.mark.parametrize("name", MODELS)
    def test_too_few_blocks(self, name: str) -> None:
        method = use("residual_checkpoint", blocks=4, inside="everything")
        verdict = judge([method], facts=facts_of(name, block_count=3), hardware=cpu())
        assert "needs at least 4 blocks" in verdict.reason
        with pytest.raises(MethodRefusedError, match="needs at least 4 blocks"):
            apply_settings(Training(gpt2(3), build_optimizer=adamw), [method])
        with pytest.raises(MethodRefusedError, match="no repeated blocks were found"):
            apply_settings(Training(nn.Linear(2, 2), build_optimizer=adamw), [method])


class SkipConnection(nn.Module):
    """Two stages of three blocks; what the first returns is used after the second as well."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Sequential(*(ConvBlock(4, 4, 0.1) for _ in range(3))) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = self.first(images)
        return torch.cat([seen, self.second(seen)]).square().mean()


@pytest.mark.parametrize("method", [*ALL, use("optimal_checkpoint", budget=0.4)], ids=lambda method: method.label)
def test_what_is_used_between_stages_is_what_the_stage_returned(method: MethodSetting) -> None:
    """Trap: a segment over both stages would hand the end of the second to whoever looks at the first."""
    states = []
    for settings in ([], [method]):
        training = Training(SkipConnection(), build_optimizer=adamw, blocks=(ConvBlock,))
        apply_settings(training, settings)
        for step in range(3):
            torch.manual_seed(step)
            training.step((torch.randn(2, 4, 8, 8),))
        states.append(training.state_dict()["model"])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
