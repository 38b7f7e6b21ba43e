"""A model without a policy beside one with a policy, in a loop with one accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

from advisor.errors import MethodRefusedError, PolicyError
from advisor.integrations import accelerate
from advisor.methods.setting import MethodSetting, use
from tests.integrations.small import adamw, batch, model, policy_of, rows

STEPS = {"plain": (), "float16": (use("precision", dtype="fp16"),)}
NORM = 0.01


@pytest.fixture(autouse=True)
def accelerators_begin_anew() -> Iterator[None]:
    """Those of one process share what the first was made with."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def loader() -> Any:
    return torch.utils.data.DataLoader(rows(), batch_size=2)  # type: ignore[arg-type]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def alone() -> dict[str, torch.Tensor]:
    """The further model, trained by accelerate without any other."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    further = model(1)
    further, optimizer, batches = accelerator.prepare(further, sgd(further.parameters()), loader())
    for micro_batch in batches:
        with accelerator.accumulate(further):
            accelerator.backward(further(**micro_batch).loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(further.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()
    return dict(further.state_dict())


@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_it_is_trained_as_without_the_other(settings: tuple[MethodSetting, ...]) -> None:
    expected = alone()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(), policy_of(*settings), accelerator=accelerator, build_optimizer=adamw)
    further = model(1)
    further, optimizer, batches = accelerator.prepare(further, sgd(further.parameters()), loader())
    before = {name: value.clone() for name, value in prepared.model.state_dict().items()}
    for micro_batch in prepared.micro_batches(batches):
        own, other = prepared.forward(micro_batch), further(**micro_batch).loss
        accelerator.backward(other)
        accelerator.backward(own + 0)  # derived from what forward returned
        if accelerator.sync_gradients:
            norms = [float(one.grad.norm()) for one in prepared.model.parameters() if one.grad is not None]
            accelerator.clip_grad_norm_(further.parameters(), NORM)
            assert norms == [float(one.grad.norm()) for one in prepared.model.parameters() if one.grad is not None]
        for one in (prepared.optimizer, optimizer):
            one.step()
            one.zero_grad()
    torch.testing.assert_close(dict(further.state_dict()), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(prepared.model.state_dict()["lm_head.weight"], before["lm_head.weight"])
    prepared.training.close()


@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_a_loss_of_both_trains_both_unless_it_is_scaled(settings: tuple[MethodSetting, ...]) -> None:
    accelerator = Accelerator(cpu=True)
    policy = policy_of(*settings, accumulation_steps=1)
    prepared = accelerate.prepare(model(1), policy, accelerator=accelerator, build_optimizer=adamw)
    further = accelerator.prepare(model(1))
    (micro_batch,) = prepared.micro_batches([batch(0)])
    both = prepared.forward(micro_batch) + further(**micro_batch).loss
    if settings:
        with pytest.raises(MethodRefusedError, match=r"precision fp16 is scaled, .* one module that has both models"):
            accelerator.backward(both)
        further.requires_grad_(False)
        both = prepared.forward(micro_batch) + further(**micro_batch).loss
    accelerator.backward(both)
    norms = [one.lm_head.weight.grad for one in (prepared.model, further)]
    assert [one is not None for one in norms] == [True, not settings]
    prepared.training.close()


def test_both_are_not_clipped_together() -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), policy_of(accumulation_steps=1), accelerator=accelerator)
    further = accelerator.prepare(model(1))
    with pytest.raises(MethodRefusedError, match="without those of others; call clip_grad_norm_ for each"):
        accelerator.clip_grad_norm_([*prepared.model.parameters(), *further.parameters()], 1.0)
    prepared.training.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["policy first", "policy last"])
def test_each_goes_on_from_its_own_saved_weights(is_first: bool, tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    own, others = model(1), [model(2), model(1)]
    before = [] if is_first else accelerator.prepare(*others)
    prepared = accelerate.prepare(own, policy_of(accumulation_steps=1), accelerator=accelerator)
    after = accelerator.prepare(*others) if is_first else []
    models = [prepared.model, *before, *after]
    for number, one in enumerate(models):
        torch.nn.init.constant_(one.lm_head.weight, float(number))
    accelerator.save_state(str(tmp_path))
    for one in models:
        torch.nn.init.constant_(one.lm_head.weight, -1.0)
    accelerator.load_state(str(tmp_path))
    assert [float(one.lm_head.weight.detach().mean()) for one in models] == [0.0, 1.0, 2.0]
    prepared.training.close()


def test_a_second_policy_is_refused_until_the_first_is_closed() -> None:
    accelerator = Accelerator(cpu=True)
    first = accelerate.prepare(model(1), policy_of(), accelerator=accelerator)
    with pytest.raises(PolicyError, match=r"one model with a policy, but it makes those of another .* close the first"):
        accelerate.prepare(model(1), policy_of(), accelerator=accelerator)
    first.training.close()
    accelerate.prepare(model(1), policy_of(), accelerator=accelerator).training.close()
