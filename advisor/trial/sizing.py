"""SIZE: short steps at growing batches, from which the memory model derives the largest batch that fits."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from advisor.measure.batches import seed_everything
from advisor.measure.measurement import MemoryMeasurement, SizePoint, Sizing
from advisor.measure.memory import MemoryMeter
from advisor.methods.training import Training
from advisor.trial.bench import Bench, finite
from advisor.trial.failure import is_out_of_memory
from advisor.trial.updating import until_updated

__all__ = ["size", "suffice"]

_LEAST_STEPS = 3
"""One creates the optimizer's state, one is timed, one is measured."""
_RISING_SHARE = 0.5
"""A peak that grows by less than this share of the activations is not yet set by them."""
_SUSPICIOUS = 1.5
"""A step that takes this many times as long per sample as one at a smaller batch was disturbed."""
_TIME_SHARE = 0.6
"""Share of the hard time limit that a further point may be expected to reach."""


def size(bench: Bench) -> Sizing:
    """Run the trial.

    Raises:
        DeviceOutOfMemoryError: Not even the first batch fits (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec = bench.spec
    points: list[SizePoint] = []
    out_of_memory_at = None
    with bench.meter() as meter, bench.training(spec.policy) as training:
        begin = time.perf_counter()
        losses, point = _first_point(bench, meter, training)
        points.append(point)
        while (micro_batch := _next(points, bench, time.perf_counter() - begin)) is not None:
            try:
                points.append(_further_point(bench, meter, training, micro_batch, points[-1]))
            except Exception as error:
                if not is_out_of_memory(error, bench.device):
                    raise
                out_of_memory_at = micro_batch
                break
    return Sizing(points=tuple(points), out_of_memory_at=out_of_memory_at, loss_trace=losses)


def _first_point(bench: Bench, meter: MemoryMeter, training: Training) -> tuple[tuple[float, ...], SizePoint]:
    spec = bench.spec
    batches = bench.batches(spec.policy.micro_batch * spec.policy.accumulation_steps)
    count = max(_LEAST_STEPS, spec.fidelity_steps)
    losses = []
    fastest = float("inf")
    for index in range(count):
        bench.tell(f"batch {spec.policy.micro_batch}, step {index + 1} of {count}")
        batch = batches[index % len(batches)]
        # Every step has its own seed: a method that draws random numbers must not shift the dropout of the next step.
        seed = spec.seed + index
        if index == 0:
            with meter.guarding(batch):
                loss = until_updated(training, functools.partial(_seeded_step, training, batch, seed))
        elif index < count - 1:
            loss, seconds = until_updated(training, functools.partial(_timed_step, bench, training, batch, seed))
            fastest = min(fastest, seconds)
        else:
            loss, memory = until_updated(training, functools.partial(_measured_step, meter, training, batch, seed))
        losses.append(finite(loss, index))
    point = SizePoint(micro_batch=spec.policy.micro_batch, memory=memory, step_seconds=fastest)
    return tuple(losses[: spec.fidelity_steps]), point


def _further_point(
    bench: Bench, meter: MemoryMeter, training: Training, micro_batch: int, before: SizePoint
) -> SizePoint:
    batches = bench.batches(micro_batch * bench.spec.policy.accumulation_steps)
    training.micro_batch = micro_batch
    bench.empty_cache()  # blocks cut for the smaller batch would stay reserved beside the new ones
    bench.tell(f"batch {micro_batch}, memory")
    # Memory first: this step stops at the limit, also on a CPU.
    loss, memory = until_updated(
        training, functools.partial(_measured_step, meter, training, batches[0], bench.spec.seed)
    )
    finite(loss, 0)
    bench.tell(f"batch {micro_batch}, time")
    loss, seconds = _timed_step(bench, training, batches[1], bench.spec.seed)
    finite(loss, 1)
    if seconds > _SUSPICIOUS * before.step_seconds * micro_batch / before.micro_batch:
        # Larger batches are not dearer per sample: something else had the machine. Once more, and the faster counts.
        seconds = min(seconds, _timed_step(bench, training, batches[1], bench.spec.seed)[1])
    return SizePoint(micro_batch=micro_batch, memory=memory, step_seconds=seconds)


def _seeded_step(training: Training, batch: Any, seed: int) -> torch.Tensor:
    seed_everything(seed)
    return training.step(batch)


def _timed_step(bench: Bench, training: Training, batch: Any, seed: int) -> tuple[torch.Tensor, float]:
    seed_everything(seed)
    begin = time.perf_counter()
    loss = training.step(batch)
    bench.synchronize()
    return loss, time.perf_counter() - begin


def _measured_step(
    meter: MemoryMeter, training: Training, batch: Any, seed: int
) -> tuple[torch.Tensor, MemoryMeasurement]:
    seed_everything(seed)
    return meter.measured_step(training, batch)


def _next(points: list[SizePoint], bench: Bench, spent: float) -> int | None:
    """The next batch to try, or ``None`` when the points suffice or there is no more time."""
    spec = bench.spec
    last = points[-1]
    # Two steps, one of them with instruments; a step takes at most as much longer as its batch is larger.
    seconds_per_factor = 2 * last.step_seconds
    factor = _factor(last, spec.memory_limit_bytes)
    while factor > 2 and spent + seconds_per_factor * factor > spec.measure_seconds:
        factor //= 2
    following = last.micro_batch * factor
    if spec.largest_batch is not None:
        following = min(following, spec.largest_batch)
    if following <= last.micro_batch or suffice(points):
        return None
    expected = spent + seconds_per_factor * following / last.micro_batch
    if len(points) >= 2 and expected > spec.measure_seconds:
        return None
    if expected > _TIME_SHARE * spec.time_limit_seconds:
        return None  # one point in hand is worth more than a second one that the time limit takes with it
    return following


def _factor(point: SizePoint, limit_bytes: int) -> int:
    """How many times larger the next batch shall be: 2, or the power of 2 that leads out of a long flat start.

    Where parameters and optimizer state are large, the forward pass of many small batches stays below the peak of
    the optimizer step. Activations grow with the batch, so one point says about where they will reach it.
    """
    memory = point.memory
    if not memory.optimizer_is_peak or memory.breakdown.activations == 0:
        return 2
    missing = memory.optimizer_peak_bytes - memory.forward_peak_bytes
    wanted = 1 + missing / memory.breakdown.activations
    allowed = 1 + (limit_bytes - memory.optimizer_peak_bytes) / memory.breakdown.activations
    factor = 2
    while 2 * factor <= min(wanted, allowed):
        factor *= 2
    return factor


def suffice(points: list[SizePoint]) -> bool:
    """Whether the two largest points are past the regime in which something else than the batch sets the peak."""
    if len(points) < 2:
        return False
    first, second = points[-2].memory, points[-1].memory
    if first.optimizer_is_peak or second.optimizer_is_peak:
        return False
    # Where the optimizer runs inside the backward pass its peak has no phase of its own, but the peak is as flat.
    growth = second.breakdown.activations - first.breakdown.activations
    return second.peak_allocated_bytes - first.peak_allocated_bytes >= _RISING_SHARE * growth
