"""Every method of the catalogue, in every trainer: two steps train as the wrapper does, or the reason is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate import Accelerator

from advisor.errors import UserError
from advisor.integrations import accelerate, hf, support
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from tests.integrations.small import (
    adamw,
    batch,
    by_loop,
    by_trainer,
    by_wrapper,
    error,
    model,
    policy_of,
    state_of,
    trainer,
)
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import uncompiled_optimizers

LOOPS = {support.HF.name: by_trainer, support.ACCELERATE.name: by_loop}
COMPILING = ("compile", "compile_budget")
"""Methods that take seconds for each value: one is enough."""
SETTINGS = [
    setting
    for method in CATALOGUE
    if method.axis is None and not method.builds_on
    for setting in settings_of(method)[: 1 if method.name in COMPILING else None]
]

NOT_HERE = {
    "channels_last": "no convolution",
    "expandable_segments": "CUDA",
    "precision(dtype=tf32)": "a format of NVIDIA GPUs",
    "attention_backend(kernel=efficient)": "a kernel for NVIDIA GPUs",
    "attention_backend(kernel=cudnn)": "a kernel for NVIDIA GPUs",
    "checkpoint(every=4)": "at least 4 blocks",
    "residual_checkpoint(blocks=4, inside=everything)": "at least 4 blocks",
    "residual_checkpoint(blocks=4, inside=inputs)": "at least 4 blocks",
    "lora(rank=32)": "adapters of rank 32 would be larger",
    "qlora(rank=32)": "adapters of rank 32 would be larger",
}
"""What cannot be used with this model on a CPU, in a wrapper neither, and words of the reason."""


@pytest.fixture(autouse=True, scope="module")
def kernels_are_not_made() -> Iterator[None]:
    with quick_compiler(), uncompiled_optimizers():
        yield


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_two_steps_in_each_loop_equal_those_of_the_wrapper(setting: MethodSetting, tmp_path: Path) -> None:
    method = get_method(setting.name)
    policy = policy_of(setting, accumulation_steps=2 if method.accumulates else 1)
    max_grad_norm = 1.0 if method.accumulates else 0.0  # What updates in the backward pass cannot clip either.
    if reason := NOT_HERE.get(setting.label):
        for loop in LOOPS.values():
            with pytest.raises(UserError, match=reason):
                loop(policy, max_grad_norm, tmp_path)
        return
    expected = by_wrapper(policy, max_grad_norm)
    for name, loop in LOOPS.items():
        assert support.outcomes()[method.name, name] == ""
        assert error(loop(policy, max_grad_norm, tmp_path), expected) < 1e-6, name


def test_the_weights_of_micro_batches_are_those_of_the_trainer_itself(tmp_path: Path) -> None:
    """Without a policy it divides by all targets of a step: a mean of means would train otherwise."""
    own = trainer(
        tmp_path,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        optim="adamw_torch",
        max_grad_norm=1.0,
    )
    own.train()
    plain = {name: tensor.detach().clone() for name, tensor in own.model.state_dict().items()}
    assert error(plain, by_wrapper(policy_of(), 1.0)) < 1e-6
    assert error(by_trainer(policy_of(), 1.0, tmp_path), plain) < 1e-6


def test_a_loop_that_accumulates_with_the_accelerator_counts_each_micro_batch_the_same() -> None:
    """As accelerate itself does; where all have as many targets, that is what the wrapper does."""
    policy = policy_of(use("precision", dtype="bf16"))
    accelerator = Accelerator(cpu=True)
    batches = [{"input_ids": whole["input_ids"], "labels": whole["input_ids"]} for whole in (batch(0), batch(1))]
    prepared = accelerate.prepare(model(), policy, accelerator=accelerator, build_optimizer=adamw)
    pieces = [{name: part[start : start + 2] for name, part in step.items()} for step in batches for start in (0, 2)]
    for piece in pieces:
        with accelerator.accumulate(prepared.model):
            accelerator.backward(prepared.forward(piece))
            prepared.optimizer.step()
            prepared.optimizer.zero_grad()
    training = apply_policy(policy, model(), build_optimizer=adamw)
    for step in batches:
        training.step(step)
    assert error(state_of(prepared.training), state_of(training)) < 1e-6


def test_an_attached_trainer_has_the_batch_of_the_policy_and_says_what_it_was(tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1, per_device_train_batch_size=8)
    training = hf.attach(own, policy_of(), max_grad_norm=0.5)
    assert (own.args.per_device_train_batch_size, own.args.gradient_accumulation_steps) == (2, 2)
    assert own.args.max_grad_norm == 0.5
    assert any("per_device_train_batch_size of the trainer was 8 and is 2" in note for note in training.notes)
    training.close()


def test_closing_the_training_gives_the_trainer_its_own_methods_back(tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1)
    hf.attach(own, policy_of()).close()
    assert "compute_loss" not in vars(own)
    assert "backward" not in vars(own.accelerator)
