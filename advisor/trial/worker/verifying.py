"""A few steps of a plain loop, and the same steps of an emitted wrapper compared with them."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import msgspec
import torch

from advisor.measure.state.first_gradient import FirstGradient, compare_gradient, save_gradient
from advisor.measure.state.movement import Movement
from advisor.measure.state.no_dropout import without_dropout
from advisor.measure.step_record import COMPARED_STEPS, StepRecord
from advisor.training.batch.tree import move
from advisor.training.loss import default_loss, require_trainable
from advisor.training.moving import on_device
from advisor.trial.folder import TrialFolder, writing
from advisor.trial.outcome import Outcome
from advisor.trial.result import PlainLoopResult, VerifyResult
from advisor.trial.spec import PlainLoopTrial, VerifyTrial
from advisor.trial.worker.bench import Bench, finite
from advisor.trial.worker.fidelity_run import OTHER_CHANCE, one_rounding_off

__all__ = ["plain_loop", "verify"]


def plain_loop(bench: Bench[PlainLoopTrial]) -> PlainLoopResult:
    """Run the loop that a user writes without any of this: the whole batch at once, and nothing but torch.

    Raises:
        DeviceOutOfMemoryError: The batch does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec, workload = bench.spec, bench.workload
    batches = bench.data.batches(spec.policy.global_batch)
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
        with _dropout(spec, model):
            for index in range(COMPARED_STEPS):
                bench.tell(f"a plain loop, step {index + 1} of {COMPARED_STEPS}")
                bench.seed(index + (OTHER_CHANCE if spec.other_chance else 0))
                batch = batches[index % len(batches)]
                with meter.guarding(batch):
                    loss = require_trainable(loss_of(model, move(batch, bench.device)))
                    loss.backward()  # type: ignore[no-untyped-call]
                    if index == 0 and spec.write_gradient_to is not None:
                        with writing(Path(spec.write_gradient_to)):
                            save_gradient(model, Path(spec.write_gradient_to))
                    elif index == 0 and spec.reference_gradient is not None:
                        gradient, gradient_reason = compare_gradient(model, Path(spec.reference_gradient))
                    if workload.max_grad_norm is not None:
                        torch.nn.utils.clip_grad_norm_(list(trained.values()), workload.max_grad_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                bench.data.reused.restore()
                losses.append(finite(loss.detach(), index))
                movement.look(model.state_dict())
    record = StepRecord(losses=tuple(losses), gradient=gradient, gradient_reason=gradient_reason)
    if spec.write_gradient_to is not None:
        path = _movement_file(Path(spec.write_gradient_to))
        with writing(path):
            movement.save(path)
    if spec.reference_gradient is not None:
        record = _compared(record, movement, Path(spec.reference_gradient), same_bits=spec.same_bits)
    return spec.ended(Outcome.OK, steps=record)


def verify(bench: Bench[VerifyTrial]) -> VerifyResult:
    """Run the same steps through the wrapper, as a user takes them; raises the same."""
    reference = Path(bench.spec.reference_gradient)
    batches = bench.data.batches(bench.spec.policy.global_batch)
    losses: list[float] = []
    with bench.meter() as meter, bench.wrapped_training(Path(bench.spec.wrapper_path)) as training:
        movement = Movement.like(_movement_file(reference))
        movement.look(training.state_dict()["model"])
        first = FirstGradient(training)
        with _dropout(bench.spec, training.model):
            for index in range(COMPARED_STEPS):
                bench.tell(f"the wrapper, step {index + 1} of {COMPARED_STEPS}")
                batch = batches[index % len(batches)]
                with meter.guarding(batch), first.catching() if index == 0 else contextlib.nullcontext():
                    loss = bench.updated(training, functools.partial(training.step, batch), step=index)
                losses.append(finite(loss, index))
                movement.look(training.state_dict()["model"])
        gradient, reason = first.compare(reference)
    record = StepRecord(losses=tuple(losses), gradient=gradient, gradient_reason=reason)
    record = _compared(record, movement, reference, same_bits=bench.spec.same_bits)
    return bench.spec.ended(Outcome.OK, steps=record)


def _compared(record: StepRecord, movement: Movement, reference: Path, *, same_bits: bool) -> StepRecord:
    """The record with how far its updates are from those of the loop whose gradient is in a file."""
    file = _movement_file(reference)
    errors, reason = movement.compare(file)
    return msgspec.structs.replace(
        record,
        update_errors=errors,
        update_reason=reason,
        other_buffers=movement.other_buffers(file, exact=same_bits),
    )


def _movement_file(gradient: Path) -> Path:
    return TrialFolder(gradient.parent).movement


def _dropout(spec: PlainLoopTrial | VerifyTrial, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    return without_dropout(model) if spec.without_dropout else contextlib.nullcontext()
