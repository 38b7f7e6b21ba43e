"""Measure a training at one batch: its memory in one step, its time in many others."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from advisor.measure.batches.batches import tokens_per_sample
from advisor.measure.in_turn import Speedup, TurnPlan
from advisor.measure.measurement import Measurement, MemoryMeasurement, StopReason
from advisor.measure.memory.cuda import nvml_device
from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.speed.energy import EnergyMeter
from advisor.measure.speed.thread_rates import sharing_among, undisturbed_threads
from advisor.measure.timing import Timing, TimingPlan, time_steps
from advisor.measure.typical import typical_seconds
from advisor.policy.policy import Policy
from advisor.training.training import Training
from advisor.trial.result import Rung
from advisor.trial.spec import ConfirmTrial, TimeTrial
from advisor.trial.worker.alternate import gain_in_turn, speedup_in_turn
from advisor.trial.worker.bench import Bench, finite

__all__ = ["Earlier", "Limits", "measured"]

_TIMED_SECONDS = {"cuda": 1.0, "cpu": 0.3}
"""Minimum seconds of timed steps: a GPU's clocks take about a second to settle, a CPU's less."""

_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 12

_SPREAD_OF_RUNG = 0.03
"""Target spread of the ratio of two batches: more rounds would cost other combinations their time."""

_SHARE_OF_GAIN = 1 / 3
"""Or this share of the gain: a batch that is clearly better is known to be before it is known by how much."""

_SPREAD_OF_LADDER = 0.05
"""Target spread of the ratio of a ladder's first batch and another training, which all its batches have in common."""

_SLOW_SECONDS = 0.5
"""Steps this slow need no warm-up beyond the step whose memory was measured."""

TimedBench = Bench[TimeTrial] | Bench[ConfirmTrial]


class Limits(NamedTuple):
    """When to stop timing.

    Attributes:
        pace: Samples per second below which timing alone stops early.
        slower_than: Speedup below which alternating steps stop early.
    """

    seconds: float
    pace: float | None = None
    slower_than: float | None = None


class Earlier(NamedTuple):
    """The best earlier batch of a ladder: its policy, a batch of it on the host, and its measurements."""

    policy: Policy
    batch: Any
    rung: Rung


def measured(
    bench: TimedBench,
    meter: MemoryMeter,
    training: Training,
    policy: Policy,
    limits: Limits,
    *,
    before: Earlier | None = None,
) -> Rung:
    """Measure a training at the batch of a policy; on several ranks, this rank's share.

    Args:
        bench: The trial's workbench.
        meter: Already entered, so that the limit applied while the model was built.
        training: The training to measure.
        policy: Defines the batch.
        limits: When to stop.
        before: A batch to alternate with in this process; otherwise the partner process's, if there is one.

    Raises:
        DeviceOutOfMemoryError: It does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    samples = policy.global_batch
    batches = bench.data.batches(samples)
    # A training that has already stepped needs no step to create the optimizer's state.
    with sharing_among(min(torch.get_num_threads(), undisturbed_threads(bench.spec.thread_rates))):
        losses = _settled(bench, meter, training, batches) if before is None else []
        memory, is_slow = _memory(bench, meter, training, samples, losses)

    def step() -> None:
        losses.append(float(training.step(batches[len(losses) % len(batches)])))
        bench.synchronize()

    bench.tell("timing")
    joules: float | None = None
    speedup: Speedup | None = None
    gain: Speedup | None = None
    with meter.watching() as completed:
        if before is not None:
            begin = time.perf_counter()
            step()  # alone, or the memory reserved for the earlier batch would count
            alone = time.perf_counter() - begin
        else:
            timing, speedup, joules = _timed(bench, step, policy, limits, warms_up=not is_slow)
        memory = completed(memory)
    if before is not None:
        timing, gain = _beside_earlier(bench, training, step, policy, limits, before, alone)
        speedup = None if before.rung.speedup is None else before.rung.speedup.times(gain)
    tokens = tokens_per_sample(batches[0], bench.data.layout.dims)
    rate = samples / timing.typical_seconds
    measurement = Measurement(
        micro_batch=policy.micro_batch,
        accumulation_steps=policy.accumulation_steps,
        step_seconds=timing.typical_seconds,
        step_seconds_low=timing.low_seconds,
        step_seconds_high=timing.high_seconds,
        timed_steps=len(timing.step_seconds),
        stop_reason=timing.stop_reason,
        samples_per_second=rate,
        tokens_per_second=None if tokens is None else rate * tokens,
        memory=memory,
        making_seconds=bench.data.making_seconds,
        joules_per_step=None if joules is None else joules / len(timing.step_seconds),
        loss_trace=tuple(finite(loss, index) for index, loss in enumerate(losses)),
    )
    over = None if before is None else before.policy.micro_batch
    return Rung(measurement=measurement, speedup=speedup, gain=gain, over=over)


def _settled(bench: TimedBench, meter: MemoryMeter, training: Training, batches: list[Any]) -> list[float]:
    """Losses of the first steps, which create the optimizer's state, and of those until methods have settled."""
    losses: list[float] = []  # no tensors: a training does not keep them on the device
    bench.tell("first step")
    for index in range(1 + training.settling_steps):
        batch = batches[index % len(batches)]
        with meter.guarding(batch):
            losses.append(float(bench.updated(training, functools.partial(training.step, batch))))
        finite(losses[index], index)
    return losses


def _memory(
    bench: TimedBench, meter: MemoryMeter, training: Training, samples: int, losses: list[float]
) -> tuple[MemoryMeasurement, bool]:
    """The memory of a step, and whether it was slow; its loss is appended to the others."""
    bench.tell("memory")
    step = functools.partial(meter.measured_step, training, bench.data.largest(samples, len(losses)))
    begin = time.perf_counter()
    loss, memory = bench.updated(training, step)
    is_slow = bench.world.agreed(time.perf_counter() - begin > _SLOW_SECONDS)  # ranks take equally many steps
    losses.append(finite(loss, len(losses)))
    del loss
    return memory, is_slow


def _timed(
    bench: TimedBench, step: Callable[[], None], policy: Policy, limits: Limits, *, warms_up: bool
) -> tuple[Timing, Speedup | None, float | None]:
    """Step times, alternating with another training if there is one; without one, also the energy.

    While two trainings alternate, the device's energy is that of both.
    """
    beside = bench.spec.beside
    if beside is not None and bench.partner is not None:
        if warms_up:
            step()
        climbs = isinstance(bench.spec, TimeTrial) and bool(bench.spec.ladder)
        turns = _turn_plan(bench, limits, target_spread=_SPREAD_OF_LADDER if climbs else None)
        found = speedup_in_turn(bench, step, policy, beside, turns)
        if found is not None:
            speedup, steps = found
            return _timing_in_turn(speedup, steps, turns), speedup, None
    energy = EnergyMeter(nvml_device(bench.device))
    plan = _plan(bench, limits, policy.global_batch, warms_up=warms_up)
    timing = time_steps(step, plan, time.perf_counter, before_timed=energy.start, agree=bench.world.agreed)
    return timing, None, energy.joules(sum(timing.step_seconds))


def _plan(bench: TimedBench, limits: Limits, samples: int, *, warms_up: bool) -> TimingPlan:
    spec = bench.spec
    return TimingPlan(
        warmup_steps=spec.warmup_steps if warms_up else 0,
        min_timed_steps=spec.min_timed_steps,
        max_timed_steps=spec.max_timed_steps,
        target_spread=spec.target_spread,
        measure_seconds=limits.seconds,
        min_timed_seconds=_TIMED_SECONDS.get(bench.device.type, _TIMED_SECONDS["cpu"]),
        outpaced_above_seconds=None if limits.pace is None else samples / limits.pace,
    )


def _beside_earlier(
    bench: TimedBench,
    training: Training,
    step: Callable[[], None],
    policy: Policy,
    limits: Limits,
    before: Earlier,
    alone: float,
) -> tuple[Timing, Speedup]:
    """Time steps alternating with an earlier batch of the same training, after one of ``alone`` seconds."""
    bench.data.reused.keep_too([before.batch])

    def own_step() -> None:
        training.micro_batch = policy.micro_batch
        step()

    def earlier_step() -> None:
        training.micro_batch = before.policy.micro_batch
        training.step(before.batch)
        bench.synchronize()

    spread = max(_SPREAD_OF_RUNG, bench.spec.target_spread)
    plan = _turn_plan(bench, limits, target_spread=spread, target_share=_SHARE_OF_GAIN)
    samples, others = policy.global_batch, before.policy.global_batch
    gain, steps = gain_in_turn(own_step, samples, earlier_step, others, plan, begun=(alone,))
    training.micro_batch = policy.micro_batch
    # Scaled to the earlier batch's measurement: values measured at different times are not comparable.
    rate = before.rung.measurement.samples_per_second * gain.value
    return _timing_in_turn(gain, steps, plan, middle=policy.global_batch / rate), gain


def _turn_plan(
    bench: TimedBench, limits: Limits, *, target_spread: float | None = None, target_share: float = 0.0
) -> TurnPlan:
    return TurnPlan(
        min_rounds=_FEWEST_ROUNDS,
        max_rounds=_MOST_ROUNDS,
        target_spread=bench.spec.target_spread if target_spread is None else target_spread,
        target_share=target_share,
        seconds=limits.seconds,
        slower_than=limits.slower_than,
    )


def _timing_in_turn(speedup: Speedup, steps: list[float], plan: TurnPlan, *, middle: float | None = None) -> Timing:
    """Step times with the ratio's interval; ``middle``, if given, replaces the typical time."""
    if plan.slower_than is not None and speedup.high < plan.slower_than:
        reason = StopReason.OUTPACED
    else:
        reason = StopReason.STEADY if speedup.relative_spread <= plan.spread_for(speedup.value) else StopReason.BUDGET
    middle = typical_seconds(steps) if middle is None else middle
    return Timing(
        typical_seconds=middle,
        low_seconds=middle * speedup.value / speedup.high,
        high_seconds=middle * speedup.value / speedup.low,
        step_seconds=tuple(steps),
        warmup_seconds=(),
        stop_reason=reason,
    )
