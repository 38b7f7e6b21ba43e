"""TIME and CONFIRM: one policy at one batch, its memory in one step, its time in many others."""

from __future__ import annotations

import functools
import time

import torch

from advisor.measure.batches import tokens_per_sample
from advisor.measure.cuda_memory import nvml_device
from advisor.measure.energy import EnergyMeter
from advisor.measure.measurement import Measurement
from advisor.measure.memory import MemoryMeter
from advisor.measure.timing import TimingPlan, time_steps
from advisor.methods.training import Training
from advisor.trial.bench import Bench, finite
from advisor.trial.updating import settling_steps, until_updated

__all__ = ["measure"]

_TIMED_SECONDS = {"cuda": 1.0, "cpu": 0.3}
"""Least seconds of timed steps: a GPU's clocks take about a second to settle, a CPU's less."""


def measure(bench: Bench, meter: MemoryMeter, training: Training) -> Measurement:
    """Measure a training; on several ranks what this one sees of it.

    Args:
        bench: The trial's workbench.
        meter: Entered already, so that the limit held while the model was built.
        training: What to measure.

    Raises:
        DeviceOutOfMemoryError: It does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec = bench.spec
    policy = spec.policy
    samples = policy.global_batch
    batches = bench.batches(samples)
    losses: list[torch.Tensor] = []
    agree = bench.world.agreed
    bench.tell("first step")
    for index in range(1 + settling_steps(training)):
        batch = batches[index % len(batches)]
        with meter.guarding(batch):
            losses.append(until_updated(training, functools.partial(training.step, batch), agree))
        finite(losses[index], index)
    bench.tell("memory")
    measured_step = functools.partial(meter.measured_step, training, batches[len(losses) % len(batches)])
    loss, memory = until_updated(training, measured_step, agree)
    finite(loss, len(losses))
    losses.append(loss)

    def step() -> None:
        losses.append(training.step(batches[len(losses) % len(batches)]))
        bench.synchronize()

    pace = spec.outpaced_below_samples_per_second
    plan = TimingPlan(
        warmup_steps=spec.warmup_steps,
        min_timed_steps=spec.min_timed_steps,
        max_timed_steps=spec.max_timed_steps,
        target_spread=spec.target_spread,
        measure_seconds=spec.measure_seconds,
        min_timed_seconds=_TIMED_SECONDS.get(bench.device.type, _TIMED_SECONDS["cpu"]),
        outpaced_above_seconds=None if pace is None else samples / pace,
    )
    energy = EnergyMeter(nvml_device(bench.device))
    bench.tell("timing")
    with meter.watching() as completed:
        timing = time_steps(step, plan, time.perf_counter, before_timed=energy.start, agree=agree)
        joules = energy.joules(sum(timing.step_seconds))
        memory = completed(memory)
    trace = tuple(finite(loss, index) for index, loss in enumerate(losses))
    tokens = tokens_per_sample(batches[0])
    rate = samples / timing.median_seconds
    return Measurement(
        micro_batch=policy.micro_batch,
        accumulation_steps=policy.accumulation_steps,
        step_seconds=timing.median_seconds,
        step_seconds_low=timing.low_seconds,
        step_seconds_high=timing.high_seconds,
        timed_steps=len(timing.step_seconds),
        stop_reason=timing.stop_reason,
        samples_per_second=rate,
        tokens_per_second=None if tokens is None else rate * tokens,
        memory=memory,
        joules_per_step=None if joules is None else joules / len(timing.step_seconds),
        loss_trace=trace,
    )
