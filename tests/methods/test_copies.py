"""A prepared model is copied (an average of its weights, say) or saved whole: it works, or says why not."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.methods.tiny import text, training_of

OF_A_CHAIN = [use("sqrt_checkpoint"), use("optimal_checkpoint", budget=0.6)]
RECOMPUTING = [*OF_A_CHAIN, use("checkpoint", every=1), use("selective_checkpoint", recompute="attention")]
REPLACING = [use("few_bit_activation", bits=4), use("randomized_linear", keep=0.5)]
OTHERS = [
    use("precision", dtype="bf16"),
    use("pure_bf16", rounding="nearest"),
    use("compress_activations", bits=8),
    use("chunked_cross_entropy", chunks=8),
    use("adam_8bit"),
    use("fused_optimizer"),
    use("lora", rank=8),
]


class _Normalized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.relu(self.norm(self.linear(inputs)))


def trained(method: MethodSetting) -> Training:
    """A training that has made a step with a method."""
    training = training_of("gpt2")
    # A model in whose blocks a pass writes to a buffer: recomputation has something to guard.
    training.model.transformer.h[0].register_buffer("seen", torch.zeros(()))
    apply_settings(training, [method])
    training.step(text(2, 16))
    return training


def two_losses(model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    losses = []
    for _ in range(2):
        loss = model(**text(2, 16)).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("method", [*RECOMPUTING[2:], *REPLACING, *OTHERS], ids=lambda one: one.name)
def test_a_copy_trains_and_leaves_the_model_alone(method: MethodSetting) -> None:
    training = trained(method)
    before = [one.detach().clone() for one in training.model.parameters()]
    first, second = two_losses(copy.deepcopy(training.model))
    assert first != second
    assert all(torch.equal(*pair) for pair in zip(before, training.model.parameters(), strict=True))


@pytest.mark.parametrize(
    "method",
    [use("checkpoint", every=1), use("selective_checkpoint", recompute="elementwise")],
    ids=lambda one: one.name,
)
def test_a_copy_counts_a_step_once_in_its_own_running_statistics(method: MethodSetting) -> None:
    model = torch.nn.Sequential(*(_Normalized() for _ in range(3)), torch.nn.Linear(4, 1))
    plain, before = copy.deepcopy(model), copy.deepcopy(dict(model.named_buffers()))
    training = Training(model, micro_batch=8, compute_loss=lambda model, batch: model(batch).square().mean())
    apply_settings(training, [method])
    copied = copy.deepcopy(training.model)
    batch = torch.randn(8, 4)
    for one in (plain, copied):
        one(batch).square().mean().backward()
    assert [int(one) for name, one in copied.named_buffers() if "tracked" in name] == [1, 1, 1]
    assert all(torch.equal(*pair) for pair in zip(plain.buffers(), copied.buffers(), strict=True))
    assert all(torch.equal(*pair) for pair in zip(before.values(), training.model.buffers(), strict=True))


@pytest.mark.parametrize("method", OF_A_CHAIN, ids=lambda one: one.name)
def test_a_copy_of_what_runs_as_a_chain_cannot_be_trained_and_says_so(method: MethodSetting) -> None:
    copied = copy.deepcopy(trained(method).model)
    with pytest.raises(MethodRefusedError, match="copy it before methods are applied"):
        two_losses(copied)


@pytest.mark.parametrize("method", OTHERS, ids=lambda one: one.name)
def test_a_model_that_is_saved_whole_is_loaded_again(method: MethodSetting) -> None:
    file = io.BytesIO()
    torch.save(trained(method).model, file)
    file.seek(0)
    first, second = two_losses(torch.load(file, weights_only=False))
    assert first != second


@pytest.mark.parametrize("method", [*RECOMPUTING, *REPLACING], ids=lambda one: one.name)
def test_a_model_that_cannot_be_saved_whole_says_what_to_save(method: MethodSetting) -> None:
    training = trained(method)
    with pytest.raises(pickle.PicklingError, match=r'save training\.state_dict\(\)\["model"\]'):
        torch.save(training.model, io.BytesIO())
    file = io.BytesIO()
    torch.save(training.state_dict()["model"], file)
    training.close()
