"""Channels last: which tensors change their layout, and which stay the very same parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, conflict_between, judge
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.methods.tiny import ConvNet, adamw, cpu, facts_of, images, training_of

CHANNELS_LAST = use("channels_last")


def lies_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def test_weights_inputs_gradients_and_optimizer_state_lie_with_their_channels_last() -> None:
    training = training_of("convnet")
    apply_settings(training, [CHANNELS_LAST])
    seen = []
    training.model.blocks[0].register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    training.backward(training.forward(images(2)))
    weight = training.model.blocks[1].conv.weight
    assert lies_last(seen[0])
    assert lies_last(weight)
    assert lies_last(weight.grad)
    training.optimizer_step()
    assert lies_last(training.optimizer.state[weight]["exp_avg"])


def test_parameters_stay_the_same_objects_so_ties_and_optimizers_keep_them() -> None:
    class Tied(ConvNet):
        def __init__(self) -> None:
            super().__init__()
            self.blocks[2].conv.weight = self.blocks[1].conv.weight

    training = Training(Tied(), build_optimizer=adamw)
    before = dict(training.model.named_parameters())
    values = {name: parameter.detach().clone() for name, parameter in before.items()}
    apply_settings(training, [CHANNELS_LAST])
    after = dict(training.model.named_parameters())
    assert all(after[name] is before[name] for name in before)
    assert all(torch.equal(after[name], values[name]) for name in before)
    assert training.model.blocks[2].conv.weight is training.model.blocks[1].conv.weight


def test_weights_that_lie_so_already_are_left_and_a_note_says_so() -> None:
    training = Training(ConvNet().to(memory_format=torch.channels_last), build_optimizer=adamw)
    apply_settings(training, [CHANNELS_LAST])
    assert ["changed nothing" in note for note in training.notes] == [True]


def test_volumes_have_their_channels_last_too() -> None:
    class Volumes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv3d(2, 4, 3, padding=1)

        def forward(self, volumes: torch.Tensor) -> torch.Tensor:
            assert volumes.is_contiguous(memory_format=torch.channels_last_3d)
            return self.conv(volumes).square().mean()

    training = Training(Volumes(), compute_loss=lambda model, batch: model(volumes=batch), build_optimizer=adamw)
    apply_settings(training, [CHANNELS_LAST])
    assert training.model.conv.weight.is_contiguous(memory_format=torch.channels_last_3d)
    training.step(torch.randn(2, 2, 4, 4, 4))


def test_fake_parameters_are_laid_out_without_memory() -> None:
    with FakeTensorMode():
        training = training_of("convnet")
        apply_settings(training, [CHANNELS_LAST])
        assert lies_last(training.model.blocks[1].conv.weight)


def test_it_does_not_apply_without_convolutions_or_where_parameters_are_sharded() -> None:
    assert "no convolution" in judge([CHANNELS_LAST], facts=facts_of("gpt2"), hardware=cpu()).reason
    sliced = use("fsdp", reshard=True, mixed_precision="none", offload=False)
    assert "shards parameters" in str(conflict_between([CHANNELS_LAST, sliced]))


@pytest.mark.parametrize("kind", [nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_transposed_convolutions_count(kind: type[nn.Module]) -> None:
    facts = facts_of("convnet", module_counts={f"torch.nn.{kind.__name__}": 1})
    assert judge([CHANNELS_LAST], facts=facts, hardware=cpu()).applicable


@pytest.mark.parametrize(
    ("saved", "loaded"), [([], [CHANNELS_LAST]), ([CHANNELS_LAST], [])], ids=["from usual", "to usual"]
)
def test_a_fused_optimizer_goes_on_from_moments_that_lay_otherwise(saved: list[Any], loaded: list[Any]) -> None:
    """Trap: torch leaves loaded moments as they lie, and fused kernels for a CPU take them as lying like the weights.

    In the second convolution every element would get the moments of another.
    """
    fused = use("fused_optimizer")
    first = training_of("convnet", dropout=0.0)
    apply_settings(first, [fused, *saved])
    for seed in range(3):
        first.step(images(4, seed=seed))
    second = training_of("convnet", dropout=0.0)
    apply_settings(second, [fused, *loaded])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for training in (first, second):
        parameters = {p: p.detach().clone() for p in training.model.parameters()}
        generator = torch.Generator().manual_seed(0)
        for parameter in parameters:
            drawn = torch.randn(parameter.shape, generator=generator) * 1e-6  # Moments decide, gradients do not.
            parameter.grad = torch.empty_like(parameter).copy_(drawn)
        training.optimizer_step()
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0.0, atol=1e-6)


def test_an_optimizer_that_would_undo_the_layout_is_refused() -> None:
    with pytest.raises(MethodRefusedError, match="returns every weight that it updates to the usual layout"):
        apply_settings(training_of("convnet"), [CHANNELS_LAST, use("adam_8bit")])
