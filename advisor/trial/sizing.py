"""SIZE: short steps at growing batches, from which the memory model derives the largest batch that fits.

Two steps that were measured allocation by allocation, and differ in sizes alone, foretell every batch: then no more are
made for memory's sake.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import msgspec
import torch

from advisor.measure.course import Course
from advisor.measure.in_turn import TurnPlan
from advisor.measure.measurement import MemoryMeasurement, SizePoint, Sizing
from advisor.measure.memory import MemoryMeter
from advisor.methods.training import Training
from advisor.policy.policy import Policy
from advisor.predict.between_courses import predict_between
from advisor.predict.prediction import MemoryPrediction
from advisor.trial.bench import Bench, finite
from advisor.trial.failure import is_out_of_memory
from advisor.trial.spec import TrialSpec
from advisor.trial.turns import speedup_in_turn
from advisor.trial.updating import settling_steps, until_updated

__all__ = ["next_batch", "size", "suffice", "telling"]

_QUICK_SECONDS = 0.3
_QUICK_REPETITIONS = 3
"""A quick step is timed this often: anything may have disturbed a single one."""
_TELLING_SECONDS = {"cuda": 0.2, "cpu": 0.05}
"""A device that is busy for so long is no longer waiting for the host to launch its kernels; a CPU soon is not."""
_TELLING_SHARE = 1 / 8
"""Share of the room for growth that the batch must take, so that figures are extrapolated eightfold at most."""
_LEAST_STEPS = 3
"""One creates the optimizer's state, one is timed, one is measured."""
_RISING_SHARE = 0.5
"""A peak that grows by less than this share of the activations is not yet set by them."""
_REACH = 4
_REACH_IN_PIECES = 2
"""Largest batch that is extrapolated to, as a multiple of the last one: another line may take over on the way, and
where a method works in pieces of a fixed size it does as soon as they are filled."""
_SUSPICIOUS = 1.5
"""A step that takes this many times as long per sample as one at a smaller batch was disturbed."""
_FEWEST_ROUNDS = 2
_MOST_ROUNDS = 8
_TARGET_SPREAD = 0.04
"""Of the comparison: enough to tell who may lead, which is then timed at length."""
_TIME_SHARE = 0.6
"""Share of the hard time limit that a further point may be expected to reach."""


def size(bench: Bench) -> tuple[Sizing, MemoryPrediction | None]:
    """Run the trial.

    Returns:
        The points, and what the last two foretell of the others, where they differ in sizes alone.

    Raises:
        DeviceOutOfMemoryError: Not even the first batch fits (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec = bench.spec
    points: list[SizePoint] = []
    courses: list[Course | None] = []
    prediction = None
    out_of_memory_at = None
    with bench.meter() as meter, bench.training(spec.policy) as training:
        begin = time.perf_counter()
        losses, point, settling_seconds = _first_point(bench, meter, training)
        points.append(point)
        courses.append(meter.course)
        in_pieces = training.works_in_pieces
        while (
            micro_batch := _following(points, bench, begin, settling_seconds, prediction, in_pieces=in_pieces)
        ) is not None:
            try:
                points.append(_further_point(bench, meter, training, micro_batch, points[-1]))
                courses.append(meter.course)
                found = _foretold(bench, points, courses)
                # Where the larger one only fills a piece more than the smaller, what an earlier pair foretold stands,
                # and what the last point takes beyond or below it is the memory model's to see.
                prediction = found or (prediction if in_pieces else None)
            except Exception as error:
                if not is_out_of_memory(error, bench.device, bench.refusals):
                    raise
                if bench.world.size > 1:
                    bench.out_of_step = "ranks may wait for one that ran out of memory"
                out_of_memory_at = micro_batch
                break
        if out_of_memory_at is None:
            points[-1] = _compared_or_not(bench, meter, training, points[-1])
        settled = dict(training.settled)
    sizing = Sizing(points=tuple(points), out_of_memory_at=out_of_memory_at, loss_trace=losses, settled=settled)
    return sizing, prediction


def _compared_or_not(bench: Bench, meter: MemoryMeter, training: Training, point: SizePoint) -> SizePoint:
    """The last point, compared if it fits at the batch of the comparison; what was measured before stands anyhow."""
    try:
        return _compared(bench, meter, training, point)
    except Exception as error:
        if bench.world.size > 1 or not is_out_of_memory(error, bench.device, bench.refusals):
            raise
        bench.out_of_step = "its comparison ran out of memory"
        bench.notes.append(f"not compared in turn: batch {training.micro_batch} did not fit")
        return point


def _compared(bench: Bench, meter: MemoryMeter, training: Training, point: SizePoint) -> SizePoint:
    """The last point, with how fast its steps are beside those of another training at the same batch."""
    spec = bench.spec
    if spec.beside is None or bench.reference is None:
        return point
    micro_batch = max(point.micro_batch, spec.compare_at or 0)
    bench.tell(f"batch {micro_batch}, in turn with {_name(spec.beside)}")
    policy = msgspec.structs.replace(spec.policy, micro_batch=micro_batch)
    beside = msgspec.structs.replace(spec.beside, micro_batch=micro_batch)
    training.micro_batch = micro_batch
    batches = bench.batches(policy.global_batch)
    count = 0

    def step() -> None:
        nonlocal count
        training.step(batches[count % len(batches)])
        bench.synchronize()
        count += 1

    if micro_batch != point.micro_batch:
        with meter.guarding(batches[0]):
            step()  # the first one at this batch
    plan = TurnPlan(
        min_rounds=_FEWEST_ROUNDS, max_rounds=_MOST_ROUNDS, target_spread=_TARGET_SPREAD, seconds=spec.turn_seconds
    )
    found = speedup_in_turn(bench, step, policy, beside, plan)
    if found is None:
        return point
    speedup, seconds = found
    if micro_batch == point.micro_batch:
        point = msgspec.structs.replace(point, step_seconds=min(point.step_seconds, *seconds))
    return msgspec.structs.replace(point, speedup=speedup, compared_at=micro_batch)


def _name(policy: Policy) -> str:
    return "the best so far" if policy.methods else "plain training"


def _foretold(bench: Bench, points: list[SizePoint], courses: list[Course | None]) -> MemoryPrediction | None:
    """What the last two points foretell; for one device alone, as ranks may differ."""
    first, second = courses[-2:]
    if first is None or second is None or bench.world.size > 1:
        return None
    return predict_between((points[-2].micro_batch, first), (points[-1].micro_batch, second))


def _first_point(bench: Bench, meter: MemoryMeter, training: Training) -> tuple[tuple[float, ...], SizePoint, float]:
    """The losses, the point, and the seconds that a method which settles in took for that."""
    spec = bench.spec
    agree = bench.world.agreed
    batches = bench.batches(spec.policy.global_batch)
    settling = settling_steps(training)
    count = max(_LEAST_STEPS, spec.fidelity_steps) + settling
    losses = []
    timed: list[float] = []
    settling_seconds, begin = 0.0, time.perf_counter()
    for index in range(count):
        bench.tell(f"batch {spec.policy.micro_batch}, step {index + 1} of {count}")
        batch = batches[index % len(batches)]
        # Every step has its own seed: a method that draws random numbers must not shift the dropout of the next step.
        if index <= settling:
            with meter.guarding(batch):
                loss = until_updated(training, functools.partial(_seeded_step, bench, training, batch, index), agree)
        elif index < count - 1:
            loss, seconds = until_updated(
                training, functools.partial(_timed_step, bench, training, batch, index), agree
            )
            timed.append(seconds)
        else:
            measured = functools.partial(_measured_step, bench, meter, training, batch, index)
            loss, memory = until_updated(training, measured, agree)
        losses.append(finite(loss, index))
        if settling and index == settling:
            settling_seconds = time.perf_counter() - begin
    # After the losses that are compared: how many more steps are made depends on the clock.
    while agree(_is_quick(timed)):
        loss, seconds = _timed_step(bench, training, batches[0])
        finite(loss, count)
        timed.append(seconds)
    point = SizePoint(micro_batch=spec.policy.micro_batch, memory=memory, step_seconds=min(timed))
    return tuple(losses[: spec.fidelity_steps]), point, settling_seconds


def _further_point(
    bench: Bench, meter: MemoryMeter, training: Training, micro_batch: int, before: SizePoint
) -> SizePoint:
    agree = bench.world.agreed
    batches = bench.batches(micro_batch * bench.spec.policy.accumulation_steps * bench.world.size)
    training.micro_batch = micro_batch
    bench.empty_cache()  # blocks cut for the smaller batch would stay reserved beside the new ones
    bench.tell(f"batch {micro_batch}, memory")
    # Memory first: this step stops at the limit, also on a CPU.
    measured = functools.partial(_measured_step, bench, meter, training, batches[0])
    loss, memory = until_updated(training, measured, agree)
    finite(loss, 0)
    bench.tell(f"batch {micro_batch}, time")
    loss, seconds = _timed_step(bench, training, batches[1])
    finite(loss, 1)
    timed = [seconds]
    # Larger batches are not dearer per sample: else something else had the machine, and the faster of two counts.
    suspicious = seconds > _SUSPICIOUS * before.step_seconds * micro_batch / before.micro_batch
    while agree(_is_quick(timed) or (suspicious and len(timed) < 2)):
        timed.append(_timed_step(bench, training, batches[1])[1])
    return SizePoint(micro_batch=micro_batch, memory=memory, step_seconds=min(timed))


def _is_quick(timed: list[float]) -> bool:
    """Whether the step is so quick that it must be timed again before its time counts."""
    return min(timed) < _QUICK_SECONDS and len(timed) < _QUICK_REPETITIONS


def _seeded_step(bench: Bench, training: Training, batch: Any, step: int) -> torch.Tensor:
    bench.seed(step)
    return training.step(batch)


def _timed_step(bench: Bench, training: Training, batch: Any, step: int = 0) -> tuple[torch.Tensor, float]:
    bench.seed(step)
    begin = time.perf_counter()
    loss = training.step(batch)
    bench.synchronize()
    return loss, time.perf_counter() - begin


def _measured_step(
    bench: Bench, meter: MemoryMeter, training: Training, batch: Any, step: int = 0
) -> tuple[torch.Tensor, MemoryMeasurement]:
    bench.seed(step)
    return meter.measured_step(training, batch)


def _following(
    points: list[SizePoint],
    bench: Bench,
    begin: float,
    settling: float,
    prediction: MemoryPrediction | None,
    *,
    in_pieces: bool,
) -> int | None:
    # The first batches may have loaded a whole data set: no measure for those that follow.
    making = bench.making_seconds if len(points) >= 2 else 0.0
    spent = time.perf_counter() - begin
    largest = None
    if prediction is not None:
        limit = bench.spec.limit_of_timed_bytes
        largest = math.inf if limit is None else prediction.largest_batch(limit)
    following = next_batch(points, bench.spec, spent, making, settling, foretold_largest=largest, in_pieces=in_pieces)
    return bench.world.agreed(following)


def next_batch(
    points: list[SizePoint],
    spec: TrialSpec,
    spent: float,
    making: float,
    settling: float = 0.0,
    *,
    foretold_largest: float | None = None,
    in_pieces: bool = False,
) -> int | None:
    """The next batch to try, or ``None`` when the points suffice or there is no more time.

    Args:
        points: What is known, by growing batch.
        spec: The trial.
        spent: Seconds since the first step.
        making: Seconds that the batches of the last point took to make.
        settling: Seconds of ``spent`` in which a method set itself up (compiled, say). They are not taken from the
            stepping; but a second batch may cost them once more, and the hard limit counts all.
        foretold_largest: Where the points foretell the memory of every batch: the largest that a timed trial may
            have; infinite for any.
        in_pieces: Whether what small batches foretell must be looked at nearer to the largest one.
    """
    last = points[-1]
    # One step with instruments and those that are timed; a step takes at most as much longer as its batch is larger.
    steps = 1 + (_QUICK_REPETITIONS if last.step_seconds < _QUICK_SECONDS else 1)
    seconds_per_factor = steps * last.step_seconds + making
    foretold = foretold_largest is not None
    wanted = 0.0
    if not foretold:
        wanted = _largest_by_line(points, spec) / _REACH
    elif in_pieces:
        wanted = _bounded(foretold_largest, spec) / _REACH_IN_PIECES
    factor = max(_factor(last, spec.memory_limit_bytes), _power_of_two(wanted / last.micro_batch))
    stepping = spent - settling
    while factor > 2 and stepping + seconds_per_factor * factor > spec.measure_seconds:
        factor //= 2
    following = last.micro_batch * factor
    if spec.largest_batch is not None:
        following = min(following, spec.largest_batch)
    if foretold_largest is not None and foretold_largest < math.inf:
        following = min(following, math.floor(foretold_largest))
    enough = (foretold or suffice(points)) and last.micro_batch >= wanted
    if following <= last.micro_batch or (enough and telling(last, spec)):
        return None
    further = seconds_per_factor * following / last.micro_batch
    if len(points) >= 2 and stepping + further > spec.measure_seconds:
        return None
    if spent + settling + further > _TIME_SHARE * spec.time_limit_seconds:
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


def _largest_by_line(points: list[SizePoint], spec: TrialSpec) -> float:
    """The largest batch by a line through the last two peaks; 0 where they do not suffice.

    What is set by one tensor at a small batch may be set by another, of which every sample needs more, at a large one.
    """
    if not suffice(points):
        return 0.0
    first, last = points[-2:]
    per_sample = (last.memory.peak_bytes - first.memory.peak_bytes) / (last.micro_batch - first.micro_batch)
    if per_sample <= 0:
        return 0.0
    limit = spec.memory_limit_bytes if spec.limit_of_timed_bytes is None else spec.limit_of_timed_bytes
    largest = last.micro_batch + (limit - last.memory.peak_bytes) / per_sample
    return _bounded(largest, spec)


def _bounded(largest: float | None, spec: TrialSpec) -> float:
    """The largest batch that there is a reason to come near to; 0 where nothing bounds it."""
    bounds = [bound for bound in (largest, spec.largest_batch) if bound is not None and bound < math.inf]
    return min(bounds, default=0.0)


def _power_of_two(factor: float) -> int:
    """The smallest power of 2 that is not below ``factor``; at least 2."""
    return 1 << max(1, math.ceil(math.log2(max(factor, 1.0))))


def telling(point: SizePoint, spec: TrialSpec) -> bool:
    """Whether a point says something about batches far above it.

    A small batch costs no more than launching its kernels, and its memory is mostly what every batch needs.
    """
    if point.step_seconds >= _TELLING_SECONDS[torch.device(spec.device).type]:
        return True
    kept = point.memory.breakdown
    fixed = kept.parameters + kept.buffers + kept.gradients + kept.optimizer_state
    return point.memory.peak_bytes - fixed >= _TELLING_SHARE * (spec.memory_limit_bytes - fixed)


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
