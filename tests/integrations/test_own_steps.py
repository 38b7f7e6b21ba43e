"""Trainers and loops that make a step in a way of their own: all of the policy is in it, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator

from advisor.errors import MethodRefusedError, PolicyError, WorkloadError
from advisor.integrations import accelerate, hf
from advisor.methods.setting import use
from advisor.policy.apply import apply_policy
from tests.integrations.small import SAMPLES, adamw, batch, error, model, policy_of, rows, state_of, trainer

BF16 = use("precision", dtype="bf16")


def trained(kind: Any, folder: Path, *settings: Any) -> dict[str, torch.Tensor]:
    own = trainer(folder, kind=kind, layers=3)
    training = hf.attach(own, policy_of(*settings), build_optimizer=adamw)
    own.train()
    return state_of(training)


class WithOutputs(transformers.Trainer):
    """Looks at the outputs in its step."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        loss, outputs = self.compute_loss(model, self._prepare_inputs(inputs), return_outputs=True)
        assert outputs.logits.shape[0] == SAMPLES // 2
        self.accelerator.backward(loss)
        return loss.detach()


class Twice(transformers.Trainer):
    """Computes the loss of a micro-batch twice, as adversarial training does."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        inputs = self._prepare_inputs(inputs)
        self.compute_loss(model, inputs)
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.parametrize("kind", [WithOutputs, Twice])
def test_a_step_of_its_own_has_all_methods_and_weights(kind: Any, tmp_path: Path) -> None:
    expected = trained(transformers.Trainer, tmp_path, BF16)
    assert error(trained(kind, tmp_path, BF16), expected) < 1e-6


def test_outputs_that_a_method_does_not_compute_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MethodRefusedError, match="leave return_outputs=True out of training_step, or chunked_cross"):
        trained(WithOutputs, tmp_path, use("chunked_cross_entropy", chunks=8))


def summed(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
    """A loss that cannot do without the number of targets."""
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


class Counting(transformers.Trainer):
    """Has the same in a method."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: Any, num_items_in_batch: Any) -> Any:
        return summed(model(**inputs), inputs["labels"], num_items_in_batch)


class Optional(Counting):
    """Says that it can do without, and cannot."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: Any = False, num_items_in_batch: Any = None) -> Any:
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def test_a_loss_that_divides_by_the_targets_of_a_step_is_given_those_of_its_micro_batch(tmp_path: Path) -> None:
    expected = trained(transformers.Trainer, tmp_path)
    assert error(trained(Counting, tmp_path), expected) < 1e-5
    own = trainer(tmp_path, compute_loss_func=summed)
    training = hf.attach(own, policy_of(), build_optimizer=adamw)
    own.train()
    assert error(state_of(training), expected) < 1e-5
    with pytest.raises(
        WorkloadError, match=r"loss of Optional must be a mean .* is None, .*give num_items_in_batch no"
    ):
        trained(Optional, tmp_path)


class Directly(transformers.Trainer):
    """Calls the model in its step."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        loss = model(**self._prepare_inputs(inputs)).loss
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ((BF16,), MethodRefusedError, r"directly .* without a part of precision bf16.*call self\.compute_loss\(model"),
        (
            (),
            PolicyError,
            r"its share of the step, .* accumulates 2, .*computed by self\.compute_loss",
        ),
    ],
)
def test_a_direct_call_in_a_step_is_refused(settings: Any, kind: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        trained(Directly, tmp_path, *settings)


class Stream(torch.utils.data.IterableDataset[Any]):
    """The data of a step and a half, of a length that nobody knows before its end."""

    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return iter(rows()[: SAMPLES * 3 // 2])


def test_what_a_stream_ends_with_before_a_whole_step_is_left_out_of_every_pass(tmp_path: Path, caplog: Any) -> None:
    own = trainer(tmp_path)
    own.train_dataset = stream = Stream()
    training = hf.attach(own, policy_of(), build_optimizer=adamw)
    with caplog.at_level("WARNING", logger="advisor"):
        own.train()
    assert stream.passes == own.state.global_step == 2
    assert [one.getMessage() for one in caplog.records if one.name == "advisor"] == [
        "The data ended after 1 of the 2 micro-batches of a step, for which the trainer makes no optimizer step. "
        "They are left out, in every pass."
    ]
    found, norm = state_of(training), own.args.max_grad_norm
    same = apply_policy(policy_of(), model(), build_optimizer=adamw, max_grad_norm=norm)
    for _ in range(2):
        same.step(batch(0))
    assert error(found, state_of(same)) < 1e-5


class Scaled(transformers.Trainer):
    """Scales the loss itself."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        loss = self.compute_loss(model, self._prepare_inputs(inputs)) / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


def test_a_loss_that_a_step_scales_once_more_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"self\.compute_loss gives it, but it was divided by 2 once more\. Leave"):
        trained(Scaled, tmp_path)


@pytest.mark.parametrize(("settings", "kind"), [((BF16,), MethodRefusedError), ((), PolicyError)])
def test_a_loop_that_calls_the_prepared_model_is_refused(settings: Any, kind: Any) -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), policy_of(*settings), accelerator=accelerator)
    with pytest.raises(kind, match=r"prepared\.forward"):
        accelerator.backward(prepared.model(**batch(0)).loss)
    with torch.no_grad():
        prepared.model(**batch(0))
    prepared.training.close()


def test_an_optimizer_of_the_loops_own_is_refused_before_or_after_prepare() -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), policy_of(), accelerator=accelerator)
    with pytest.raises(PolicyError, match=r"one of yours .*: AdamW\. Pass build_optimizer=.*use prepared\.optimizer"):
        accelerator.prepare(adamw(prepared.model.parameters()))
    prepared.training.close()
    own = model(1)
    accelerator.prepare(own, adamw(own.parameters()))
    with pytest.raises(PolicyError, match=r"one of yours with parameters of the model: AdamW"):
        accelerate.prepare(own, policy_of(), accelerator=accelerator)


def test_a_loop_that_never_calls_the_policys_optimizer_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), policy_of(accumulation_steps=1), accelerator=accelerator)
    micro_batches = prepared.micro_batches([batch(0), batch(1)])
    accelerator.backward(prepared.forward(next(micro_batches)))
    with pytest.raises(PolicyError, match=r"was not called in the last one, which made gradients\. Call its step"):
        next(micro_batches)
    prepared.training.close()


def test_groups_that_a_loop_makes_by_name_have_the_parameters_of_wrapped_blocks() -> None:
    own = model()
    groups = [[f"model.layers.{number}." for number in (0, 1)], ["layers.2.", "norm.weight"]]

    def build(parameters: Any) -> torch.optim.Optimizer:
        first = [one for name, one in own.named_parameters() if name.startswith(tuple(groups[0]))]
        rest = [one for name, one in own.model.named_parameters() if name.startswith(tuple(groups[1]))]
        return torch.optim.AdamW([{"params": first, "lr": 1e-3}, {"params": rest}])

    expected = [len(group["params"]) for group in build(None).param_groups]
    prepared = accelerate.prepare(
        own, policy_of(use("checkpoint", every=1)), accelerator=Accelerator(cpu=True), build_optimizer=build
    )
    assert [len(group["params"]) for group in prepared.optimizer.param_groups] == expected
    assert any("_checkpoint_wrapped_module" in name for name, _ in own.named_parameters())
    prepared.training.close()
