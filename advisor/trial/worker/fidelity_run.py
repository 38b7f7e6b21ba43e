"""Some tens of steps, the same for the reference run and for those that are compared with it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from advisor.measure.fidelity import FidelityRecord
from advisor.measure.speed.thread_rates import sharing_among, undisturbed_threads
from advisor.measure.state.first_gradient import FirstGradient
from advisor.measure.state.model_state import state_changes, state_values
from advisor.measure.state.outer_state import outer_places, outer_values
from advisor.measure.state.sharded import own_part
from advisor.training.training import Training
from advisor.trial.folder import writing
from advisor.trial.outcome import Outcome
from advisor.trial.result import FidelityResult
from advisor.trial.spec import FidelityTrial
from advisor.trial.worker.bench import Bench, finite

__all__ = ["OTHER_CHANCE", "one_rounding_off", "record_fidelity"]

_LEAST_STEPS = 6
"""However slow a step is: fewer tell nothing of where a loss goes."""

OTHER_CHANCE = 500_009
"""Added to the seeds of steps: more than a trial has, and less than there is between two ranks."""

_ROUNDING = 2.0**-23
"""Spacing of float32 numbers, relative."""


def record_fidelity(bench: Bench[FidelityTrial]) -> FidelityResult:
    """Run the trial.

    Every step has its own seed, the same in every run, whatever a method draws. The steps end early when they take
    longer than the trial's soft limit.

    Raises:
        DeviceOutOfMemoryError: Not even this batch fits (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec = bench.spec
    batches = bench.data.batches(spec.policy.global_batch)
    losses: list[float] = []
    gradient, reason = None, ""
    state: dict[str, float] = {}
    nothing = contextlib.nullcontext()
    built: dict[str, torch.nn.Module] = {}
    with (
        bench.meter() as meter,
        bench.training(spec.policy, look=lambda model: built.update(model.named_modules())) as training,
        sharing_among(min(torch.get_num_threads(), undisturbed_threads(spec.thread_rates))),
    ):
        if spec.other_chance:
            one_rounding_off(training.model)
        settling = training.settling_steps
        least = _LEAST_STEPS + settling
        begin = time.perf_counter()
        while len(losses) < spec.fidelity_steps:
            index = len(losses)
            if settling and index <= 1 + settling:
                begin = time.perf_counter()  # what a method takes to set itself up is not taken from its steps
            if bench.world.agreed(index >= least and time.perf_counter() - begin > spec.measure_seconds):
                break
            bench.tell(f"comparing losses, step {index + 1} of {spec.fidelity_steps}")
            batch = batches[index % len(batches)]
            first, watched = None, None
            if index == 0:
                first = FirstGradient(training)
                there = set(training.model.modules())
                modules = {name: module for name, module in built.items() if module in there}
                built.clear()
                watched = functools.partial(state_values, modules)
            elif index == 1:
                # What is outside of modules may be left from earlier trials, hence not in the first step: a condition
                # that every step sets anew is then no change, and a counter is one in every training.
                places = outer_places(training.model.modules(), bench.user_functions())
                watched = functools.partial(outer_values, places)
            step = functools.partial(_step, bench, training, batch, watched)
            # Another run of the same training by chance: other random numbers in every step, on the same batches.
            seed = index + (OTHER_CHANCE if spec.other_chance else 0)
            with meter.guarding(batch) if first else nothing, first.catching() if first else nothing:
                loss, changes = bench.updated(training, step, step=seed)
            losses.append(finite(loss, index))
            state |= changes
            if first is None:
                continue
            if spec.write_gradient_to is not None:
                with writing(Path(spec.write_gradient_to)):
                    first.save(Path(spec.write_gradient_to))
            if spec.reference_gradient is not None:
                gradient, reason = first.compare(Path(spec.reference_gradient))
    record = FidelityRecord(
        losses=tuple(losses), distinct_batches=len(batches), gradient=gradient, gradient_reason=reason, state=state
    )
    return spec.ended(Outcome.OK, fidelity=record)


def _step(
    bench: Bench[FidelityTrial], training: Training, batch: Any, watched: Callable[[], Mapping[str, Any]] | None
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of a step, and what it changes of what is watched."""
    before = watched() if watched else {}
    loss = training.step(batch)
    return loss, state_changes(before, watched(), bench.spec.watched_state) if watched else {}


def one_rounding_off(model: torch.nn.Module) -> None:
    """Move every parameter by about one rounding: how a training amplifies what cannot matter is part of its noise."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                own = own_part(parameter)
                signs = torch.randint(0, 2, own.shape, generator=generator) * 2 - 1
                own.mul_((1 + _ROUNDING * signs).to(own.device))
