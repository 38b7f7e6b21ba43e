"""The loss: where it is found, and the error when it cannot be used."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import WorkloadError
from advisor.training.loss import check_loss, default_loss, is_causal_loss, require_trainable
from advisor.training.training import Training
from tests.methods.tiny import gpt2, text


class Returns(nn.Module):
    """Keeps how it was called and returns what it was given."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output
        self.called: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.called = args, kwargs
        return self.output


SCALAR = torch.tensor(3.0, requires_grad=True)


@pytest.mark.parametrize(
    "output",
    [SCALAR, {"loss": SCALAR, "logits": 1}, SimpleNamespace(loss=SCALAR), (SCALAR, torch.zeros(4))],
    ids=["the output itself", "['loss']", ".loss", "the first of several, as without return_dict"],
)
def test_the_loss_is_found_in_what_the_model_returns(output: Any) -> None:
    assert default_loss(Returns(output), torch.zeros(1)) is SCALAR


@pytest.mark.parametrize(
    ("batch", "called"),
    [({"a": 1}, ((), {"a": 1})), ((1, 2), ((1, 2), {})), ([1, 2], ((1, 2), {})), (5, ((5,), {}))],
)
def test_a_batch_is_passed_by_its_kind(batch: Any, called: Any) -> None:
    model = Returns(SCALAR)
    default_loss(model, batch)
    assert model.called == called


@pytest.mark.parametrize(
    ("output", "described"),
    [
        (torch.zeros(4, 10), r"tensor of shape \(4, 10\)"),
        ({"logits": 1}, r"dict with the keys \['logits'\]"),
        ((torch.zeros(2),), r"tuple of 1: a tensor of shape \(2,\)"),
        ((torch.zeros(2), SCALAR), r"tuple of 2: a tensor of shape \(2,\)"),
        ((SCALAR, torch.tensor(1.0)), "tuple of 2"),
        ((torch.tensor(3), torch.zeros(2)), "tuple of 2"),
        (None, "a NoneType"),
    ],
)
def test_an_output_without_a_loss_is_described_and_the_lines_to_add_are_shown(output: Any, described: str) -> None:
    with pytest.raises(WorkloadError, match=described) as caught:
        default_loss(Returns(output), (torch.zeros(1),))
    assert "def compute_loss(model, batch):" in str(caught.value)


def test_a_transformers_model_without_labels_gets_the_lines_for_a_mapping() -> None:
    with pytest.raises(WorkloadError, match=r'batch\["labels"\]'):
        default_loss(gpt2(2), {"input_ids": text(1, 8)["input_ids"]})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3.0, "must return a scalar tensor, but it returned a float"),
        (None, "NoneType"),
        (torch.zeros(2, 3, requires_grad=True), r"its shape is \(2, 3\)"),
        (torch.tensor(1.0), "depend on parameters that require a gradient"),
        (torch.tensor(1), "floating-point"),
        (torch.tensor(float("nan"), requires_grad=True), "finite, but it is nan"),
        (torch.tensor(float("inf"), requires_grad=True), "finite, but it is inf"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_refused(loss: Any, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        check_loss(loss)


def test_a_loss_of_one_element_is_as_good_as_a_scalar() -> None:
    assert check_loss(torch.ones(1, requires_grad=True)).shape == ()


def test_training_refuses_an_unusable_loss_in_the_forward_pass() -> None:
    training = Training(nn.Linear(2, 2), compute_loss=lambda model, batch: model(batch))
    with pytest.raises(WorkloadError, match=r"its shape is \(3, 2\)"):
        training.step(torch.zeros(3, 2))


def test_the_next_token_loss_is_told_by_the_models_own_loss_function() -> None:
    import transformers

    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    masked = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **tiny))
    encoder_decoder = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    assert is_causal_loss(gpt2(2))
    assert not is_causal_loss(masked)
    assert not is_causal_loss(encoder_decoder)
    assert not is_causal_loss(nn.Linear(1, 1))


class Taking(nn.Module):
    """Takes inputs alone, and returns what it is told to."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.returned = returned

    def forward(self, x: torch.Tensor) -> Any:
        return self.returned(self.linear(x))


INPUTS, CLASSES = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "returned"),
    [
        ((INPUTS, CLASSES), lambda logits: logits),
        ([INPUTS, torch.randn(5, 3)], lambda logits: logits),
        ((INPUTS, CLASSES), lambda logits: (logits, logits.mean(0))),
        ((INPUTS, CLASSES), lambda logits: {"logits": logits}),
        ({"x": INPUTS, "labels": CLASSES}, lambda logits: logits),
        ({"x": INPUTS, "y": CLASSES}, lambda logits: {"logits": logits}),
        ({"x": INPUTS}, lambda logits: (logits, logits.square().mean())),
        ((INPUTS,), lambda logits: (logits, logits.square().mean(), None)),
        ({"x": INPUTS}, lambda logits: {"logits": logits, "objective": logits.square().mean()}),
    ],
)
def test_the_lines_to_add_work_as_they_stand(batch: Any, returned: Any) -> None:
    """Trap: the lines for a pair were shown to a model that returns its logits in a tuple."""
    model = Taking(returned)
    with pytest.raises(WorkloadError, match="without compute_loss") as caught:
        default_loss(model, batch)
    lines = textwrap.dedent(str(caught.value).split("for example:\n\n")[1])
    names: dict[str, Any] = {"torch": torch}
    exec(lines, names)
    require_trainable(names["compute_loss"](model, batch)).backward()
    assert model.linear.weight.grad is not None


def test_a_type_error_inside_of_the_model_is_the_users() -> None:
    model = Taking(lambda logits: logits + "text")
    with pytest.raises(TypeError):
        default_loss(model, INPUTS)
