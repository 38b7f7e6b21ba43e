"""Profiling runs at growing batches, from which the memory model derives the largest batch that fits.

Two steps that were recorded allocation by allocation, and differ only in sizes, predict every batch: then no further
step is made to measure memory.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import msgspec
import torch

from advisor.errors import FewerSamplesError
from advisor.measure.in_turn import TurnPlan
from advisor.measure.measurement import SizePoint, Sizing
from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.memory.timeline import MemoryTimeline
from advisor.policy.policy import Policy
from advisor.predict.prediction import MemoryPrediction
from advisor.predict.trace.envelope import predict_between
from advisor.training.training import Training
from advisor.trial.outcome import Outcome
from advisor.trial.result import SizeResult
from advisor.trial.spec import HOPELESS, SizeTrial
from advisor.trial.worker.alternate import speedup_in_turn
from advisor.trial.worker.bench import Bench, finite
from advisor.trial.worker.failure import at_batch, is_out_of_memory
from advisor.trial.worker.growing_batches import FAR, QUICK_REPETITIONS, QUICK_SECONDS, looks_hopeless, next_batch

__all__ = ["size"]

_Recorded = tuple[SizePoint, MemoryTimeline | None]

_LEAST_STEPS = 3
"""One creates the optimizer's state, one is timed, one measures memory."""
_SUSPICIOUS = 1.5
"""Time per sample, relative to a smaller batch, above which a step was probably disturbed."""
_TURNS = TurnPlan(min_rounds=2, max_rounds=8, target_spread=0.04, seconds=math.inf, slower_than=0.8)
"""Of the comparison: enough to find possible leaders, which then get full timing. Clearly slower ones cannot lead."""
_GLANCE = TurnPlan(min_rounds=2, max_rounds=2, target_spread=0.04, seconds=math.inf, slower_than=HOPELESS)
"""Of one that looks hopeless at a smaller batch."""


def size(bench: Bench[SizeTrial]) -> SizeResult:
    """Run the trial.

    Raises:
        DeviceOutOfMemoryError: Not even the first batch fits (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec = bench.spec
    prediction: MemoryPrediction | None = None
    out_of_memory_at = None
    is_hopeless, glanced_at = False, 0
    with bench.meter() as meter, bench.training(spec.policy) as training:
        begin = time.perf_counter()
        losses, point, settling_seconds, instrumented = _first_point(bench, meter, training)
        points, timeline = [point], meter.timeline
        in_chunks, is_timed = training.works_in_chunks, True

        def following(known: list[SizePoint]) -> int | None:
            return _following(known, bench, begin, settling_seconds, instrumented, prediction, in_chunks=in_chunks)

        while not is_hopeless and (micro_batch := following(points)) is not None:
            try:
                point = _further_point(bench, meter, training, micro_batch)
                instrumented = point.step_seconds
                before, timeline = timeline, meter.timeline
                found = _predicted(bench, (points[-1], before), (point, timeline))
                # If the larger batch only fills one more chunk than the smaller, the earlier pair's prediction stands,
                # and the memory model accounts for the last point's deviation from it.
                prediction = found or (prediction if in_chunks else None)
                is_timed = not _turns_would_time(point, bench) or following([*points, point]) is not None
                points.append(_timed_point(bench, training, point, points[-1]) if is_timed else point)
            except FewerSamplesError:
                break  # no more data, on any rank
            except Exception as error:
                if not is_out_of_memory(error, bench.device, bench.refusals):
                    at_batch(error, micro_batch)
                    raise
                if bench.world.size > 1:
                    bench.out_of_step = "ranks may wait for one that ran out of memory"
                out_of_memory_at = micro_batch
                break
            if micro_batch >= FAR * glanced_at and looks_hopeless(points, spec):
                glanced_at, paused = micro_batch, time.perf_counter()
                glance = _compared_or_not(bench, meter, training, points, at=micro_batch, plan=_GLANCE)
                begin += time.perf_counter() - paused  # no time of the profiling runs
                if bench.out_of_step:
                    break
                if is_hopeless := glance.speedup is not None and glance.speedup.high < HOPELESS:
                    points[-1] = glance
        if out_of_memory_at is None and not is_hopeless and not bench.out_of_step:
            at = max(points[-1].micro_batch, spec.compare_at or 0)
            points[-1] = _compared_or_not(bench, meter, training, points, is_timed=is_timed, at=at, plan=_TURNS)
        settled = dict(training.settled)
    sizing = Sizing(points=tuple(points), out_of_memory_at=out_of_memory_at, loss_trace=losses, settled=settled)
    return spec.ended(Outcome.OK, sizing=sizing, prediction=prediction, paces=tuple(bench.paces))


def _compared_or_not(
    bench: Bench[SizeTrial],
    meter: MemoryMeter,
    training: Training,
    points: list[SizePoint],
    *,
    at: int,
    plan: TurnPlan,
    is_timed: bool = True,
) -> SizePoint:
    """The last point, compared if it fits at the comparison's batch; its other measurements are kept either way."""
    point = points[-1]
    try:
        compared = _compared(bench, meter, training, point, at, plan)
        if compared.speedup is None and not is_timed:
            return _timed_point(bench, training, point, points[-2])
        return compared
    except FewerSamplesError as error:
        bench.notes.append(f"not compared in turn: {error}")
        return point
    except Exception as error:
        if bench.world.size > 1 or not is_out_of_memory(error, bench.device, bench.refusals):
            at_batch(error, at)
            raise
        bench.out_of_step = "its comparison ran out of memory"
        bench.notes.append(f"not compared in turn: batch {training.micro_batch} did not fit")
        return point


def _compared(
    bench: Bench[SizeTrial],
    meter: MemoryMeter,
    training: Training,
    point: SizePoint,
    micro_batch: int,
    plan: TurnPlan,
) -> SizePoint:
    """The last point, with its speedup over another training at a batch that is at least its own."""
    spec = bench.spec
    if spec.beside is None or bench.partner is None:
        return point
    bench.tell(f"batch {micro_batch}, in turn with {_name(spec.beside)}")
    policy = msgspec.structs.replace(spec.policy, micro_batch=micro_batch)
    beside = msgspec.structs.replace(spec.beside, micro_batch=micro_batch)
    training.micro_batch = micro_batch
    batches = bench.data.batches(policy.global_batch)
    count = 0

    def step() -> None:
        nonlocal count
        training.step(batches[count % len(batches)])
        bench.synchronize()
        count += 1

    if micro_batch != point.micro_batch:
        with meter.guarding(batches[0]):
            step()  # the first one at this batch
    plan = msgspec.structs.replace(plan, seconds=spec.turn_seconds)
    found = speedup_in_turn(bench, step, policy, beside, plan)
    if found is None:
        return point
    speedup, seconds = found
    if micro_batch == point.micro_batch:
        point = msgspec.structs.replace(point, step_seconds=min(point.step_seconds, *seconds))
    return msgspec.structs.replace(point, speedup=speedup, compared_at=micro_batch)


def _name(policy: Policy) -> str:
    return "a faster combination" if policy.methods else "plain training"


def _predicted(bench: Bench[SizeTrial], first: _Recorded, second: _Recorded) -> MemoryPrediction | None:
    """The prediction from two points; for one device only, as ranks may differ."""
    if first[1] is None or second[1] is None or bench.world.size > 1:
        return None
    return predict_between((first[0].micro_batch, first[1]), (second[0].micro_batch, second[1]))


def _first_point(
    bench: Bench[SizeTrial], meter: MemoryMeter, training: Training
) -> tuple[tuple[float, ...], SizePoint, float, float]:
    """The losses, the point, and the seconds that methods took to settle and that the step with instruments took."""
    spec = bench.spec
    batches = bench.data.batches(spec.policy.global_batch)
    settling = training.settling_steps
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
                loss = bench.updated(training, functools.partial(training.step, batch), step=index)
        elif index < count - 1:
            loss, seconds = _timed_step(bench, training, batch, index)
            timed.append(seconds)
        else:
            measured = functools.partial(
                meter.measured_step, training, bench.data.largest(spec.policy.global_batch, index)
            )
            begin_measured = time.perf_counter()
            loss, memory = bench.updated(training, measured, step=index)
            instrumented = time.perf_counter() - begin_measured
        losses.append(finite(loss, index))
        if settling and index == settling:
            settling_seconds = time.perf_counter() - begin
    # After the losses to compare: the number of further steps depends on the clock.
    while bench.world.agreed(_is_quick(timed)):
        loss, seconds = _timed_step(bench, training, batches[0])
        finite(loss, count)
        timed.append(seconds)
    point = SizePoint(micro_batch=spec.policy.micro_batch, memory=memory, step_seconds=min(timed))
    return tuple(losses[: spec.fidelity_steps]), point, settling_seconds, instrumented


def _turns_would_time(point: SizePoint, bench: Bench[SizeTrial]) -> bool:
    """Whether the comparison runs at its batch and will time it: a slow step need not be timed twice."""
    spec = bench.spec
    takes_turns = spec.beside is not None and bench.partner is not None
    # If batches differ in size, the instrumented step used the largest, so its time does not count.
    return (
        takes_turns
        and bench.data.layout.sizes is None
        and (spec.compare_at or 0) <= point.micro_batch
        and point.step_seconds >= QUICK_SECONDS
    )


def _further_point(bench: Bench[SizeTrial], meter: MemoryMeter, training: Training, micro_batch: int) -> SizePoint:
    """Its memory, and the time of the instrumented step, which is slightly slower."""
    batch = bench.data.largest(micro_batch * bench.spec.policy.accumulation_steps * bench.world.data.size)
    training.micro_batch = micro_batch
    bench.empty_cache()  # blocks of the smaller batch would stay reserved along with the new ones
    bench.tell(f"batch {micro_batch}, memory")
    # Memory first: this step enforces the limit, even on a CPU.
    begin = time.perf_counter()
    loss, memory = bench.updated(training, functools.partial(meter.measured_step, training, batch), step=0)
    finite(loss, 0)
    return SizePoint(micro_batch=micro_batch, memory=memory, step_seconds=time.perf_counter() - begin)


def _timed_point(bench: Bench[SizeTrial], training: Training, point: SizePoint, before: SizePoint) -> SizePoint:
    micro_batch = point.micro_batch
    batches = bench.data.batches(micro_batch * bench.spec.policy.accumulation_steps * bench.world.data.size)
    bench.tell(f"batch {micro_batch}, time")
    loss, seconds = _timed_step(bench, training, batches[1])
    finite(loss, 1)
    timed = [seconds]
    # Larger batches should not take longer per sample. If one does, the machine was busy: take the faster of two.
    suspicious = seconds > _SUSPICIOUS * before.step_seconds * micro_batch / before.micro_batch
    while bench.world.agreed(_is_quick(timed) or (suspicious and len(timed) < 2)):
        timed.append(_timed_step(bench, training, batches[1])[1])
    return msgspec.structs.replace(point, step_seconds=min(timed))


def _is_quick(timed: list[float]) -> bool:
    return min(timed) < QUICK_SECONDS and len(timed) < QUICK_REPETITIONS


def _timed_step(bench: Bench[SizeTrial], training: Training, batch: Any, step: int = 0) -> tuple[torch.Tensor, float]:
    def attempt() -> tuple[torch.Tensor, float]:
        begin = time.perf_counter()
        loss = training.step(batch)
        bench.synchronize()
        return loss, time.perf_counter() - begin

    return bench.updated(training, attempt, step=step)


def _following(
    points: list[SizePoint],
    bench: Bench[SizeTrial],
    begin: float,
    settling: float,
    instrumented: float,
    prediction: MemoryPrediction | None,
    *,
    in_chunks: bool,
) -> int | None:
    # The first batches may have loaded the data set, so their time says nothing about later ones.
    making = 2 * bench.data.making_seconds if len(points) >= 2 else 0.0  # of both batches
    spent = time.perf_counter() - begin
    largest = None
    if prediction is not None:
        limit = bench.spec.limit_of_timed_bytes
        largest = math.inf if limit is None else prediction.largest_batch(limit)
    following = next_batch(
        points,
        bench.spec,
        spent,
        making,
        settling,
        instrumented=instrumented,
        predicted_largest=largest,
        in_chunks=in_chunks,
    )
    return bench.world.agreed(following, int | None)
