"""VERIFY: a few steps of a plain loop, and the same steps of an emitted wrapper held against them."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import torch

from advisor.measure.state.first_gradient import FirstGradient, compare_gradient, save_gradient
from advisor.measure.state.movement import Movement
from advisor.measure.state.no_dropout import without_dropout
from advisor.measure.step_record import COMPARED_STEPS, StepRecord
from advisor.training.batch.tree import move
from advisor.training.loss import default_loss, require_trainable
from advisor.training.moving import on_device
from advisor.training.training import Training
from advisor.trial.folder import TrialFolder, writing
from advisor.trial.worker.bench import Bench, finite
from advisor.trial.worker.fidelity import OTHER_CHANCE, one_rounding_off
from advisor.trial.worker.updating import until_updated

__all__ = ["record_steps"]


def record_steps(bench: Bench) -> StepRecord:
    """Run the trial: the wrapper if there is one, else the plain loop.

    Raises:
        DeviceOutOfMemoryError: The batch does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    return _plain(bench) if bench.spec.wrapper_path is None else _wrapped(bench, Path(bench.spec.wrapper_path))


def _plain(bench: Bench) -> StepRecord:
    """The loop that a user writes without any of this: the whole batch at once, and nothing but torch."""
    spec, workload = bench.spec, bench.workload
    batches = bench.batches(spec.policy.global_batch)
    losses: list[float] = []
    gradient, gradient_reason = None, ""
    with bench.meter() as meter:
        bench.tell("building the model")
        model = on_device(bench.build_model(), bench.device)
        if not model.training:
            model.train()
        if spec.other_chance:
            one_rounding_off(model)
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        optimizer = (workload.build_optimizer or torch.optim.AdamW)(list(trained.values()))
        loss_of = workload.compute_loss or default_loss
        movement = Movement.of(model)
        movement.look(model.state_dict())
        with _dropout(bench, model):
            for index in range(COMPARED_STEPS):
                bench.tell(f"a plain loop, step {index + 1} of {COMPARED_STEPS}")
                _seed(bench, index)
                batch = batches[index % len(batches)]
                with meter.guarding(batch):
                    loss = require_trainable(loss_of(model, move(batch, bench.device)))
                    loss.backward()  # type: ignore[no-untyped-call]
                    if index == 0 and spec.write_gradient_to is not None:
                        with writing(Path(spec.write_gradient_to)):
                            save_gradient(model, Path(spec.write_gradient_to))
                    elif index == 0 and spec.exact_gradient is not None:
                        gradient, gradient_reason = compare_gradient(model, Path(spec.exact_gradient))
                    if workload.max_grad_norm is not None:
                        torch.nn.utils.clip_grad_norm_(list(trained.values()), workload.max_grad_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                bench.reused.restore()
                losses.append(finite(loss.detach(), index))
                movement.look(model.state_dict())
    record = StepRecord(losses=tuple(losses), gradient=gradient, gradient_reason=gradient_reason)
    return _held_against(bench, record, movement)


def _wrapped(bench: Bench, wrapper: Path) -> StepRecord:
    """The same steps through the wrapper, as a user takes them."""
    assert bench.spec.exact_gradient is not None, "a plain loop has run before"
    exact = Path(bench.spec.exact_gradient)
    batches = bench.batches(bench.spec.policy.global_batch)
    losses: list[float] = []
    with bench.meter() as meter, bench.wrapped_training(wrapper) as training:
        movement = Movement.like(_movement_file(exact))
        movement.look(training.state_dict()["model"])
        first = FirstGradient(training)
        with _dropout(bench, training.model):
            for index in range(COMPARED_STEPS):
                bench.tell(f"the wrapper, step {index + 1} of {COMPARED_STEPS}")
                batch = batches[index % len(batches)]
                step = functools.partial(_step, bench, training, batch, index)
                with meter.guarding(batch), first.catching() if index == 0 else contextlib.nullcontext():
                    loss = until_updated(training, step, bench.world.agreed)
                losses.append(finite(loss, index))
                movement.look(training.state_dict()["model"])
        gradient, reason = first.compare(exact)
    record = StepRecord(losses=tuple(losses), gradient=gradient, gradient_reason=reason)
    return _held_against(bench, record, movement)


def _held_against(bench: Bench, record: StepRecord, movement: Movement) -> StepRecord:
    """The record with what its movement shows; the plain loop's own is written down instead."""
    spec = bench.spec
    if spec.write_gradient_to is not None:
        path = _movement_file(Path(spec.write_gradient_to))
        with writing(path):
            movement.save(path)
    if spec.exact_gradient is None:
        return record
    file = _movement_file(Path(spec.exact_gradient))
    errors, reason = movement.compare(file)
    return StepRecord(
        losses=record.losses,
        gradient=record.gradient,
        gradient_reason=record.gradient_reason,
        update_errors=errors,
        update_reason=reason,
        other_buffers=movement.other_buffers(file, exact=spec.same_bits),
    )


def _movement_file(gradient: Path) -> Path:
    """Where the movement is kept whose first gradient is in a file."""
    return TrialFolder(gradient.parent).movement


def _step(bench: Bench, training: Training, batch: Any, index: int) -> torch.Tensor:
    _seed(bench, index)
    return training.step(batch)


def _seed(bench: Bench, index: int) -> None:
    bench.seed(index + (OTHER_CHANCE if bench.spec.other_chance else 0))


def _dropout(bench: Bench, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    return without_dropout(model) if bench.spec.without_dropout else contextlib.nullcontext()
