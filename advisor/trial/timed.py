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
from advisor.measure.timing import NEAR, TimingPlan, time_steps
from advisor.methods.training import Training
from advisor.policy.policy import Policy
from advisor.trial.bench import Bench, finite
from advisor.trial.failure import failed_result
from advisor.trial.updating import settling_steps, until_updated

__all__ = ["measure", "measure_smaller"]

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
    return _measured(
        bench,
        meter,
        training,
        spec.policy,
        seconds=spec.measure_seconds,
        pace=spec.outpaced_below_samples_per_second,
    )


def measure_smaller(bench: Bench, meter: MemoryMeter, training: Training, measured: Measurement) -> Measurement | None:
    """Measure the same training at the smaller micro-batch that is asked for, in about half the time.

    It is compared with the larger one on the way, and timed no further once it is clearly slower. Whatever becomes of
    it, the figures of the larger one stand.

    Args:
        bench: The trial's workbench.
        meter: Still entered.
        training: What was measured.
        measured: Its figures.

    Returns:
        ``None`` where it did not go well; the trial's notes say why.
    """
    spec = bench.spec
    smaller, policy = spec.smaller, spec.policy
    assert smaller is not None, "a second batch was asked for"
    assert smaller.micro_batch < policy.micro_batch, f"smaller than {policy.micro_batch}, got {smaller.micro_batch}"
    assert (smaller.methods, smaller.gpu_count) == (policy.methods, policy.gpu_count), "the training is built already"
    training.micro_batch = smaller.micro_batch
    bench.empty_cache()  # What was reserved for the larger batch is not what this one takes.
    try:
        return _measured(
            bench,
            meter,
            training,
            smaller,
            seconds=spec.measure_seconds / 2,
            pace=max((1 - NEAR) * measured.samples_per_second, spec.outpaced_below_samples_per_second or 0.0),
        )
    except Exception as error:
        if bench.world.size > 1:
            raise  # The other ranks wait for this one.
        bench.out_of_step = "its second batch failed"
        failed = failed_result(
            spec.key, error, device=bench.device, limit_bytes=spec.memory_limit_bytes, refusals=bench.refusals
        )
        batches = f"batch {smaller.micro_batch}, timed after {policy.micro_batch}"
        bench.notes.append(f"{batches}, ended as {failed.outcome.value}: {failed.reason}")
        return None


def _measured(
    bench: Bench, meter: MemoryMeter, training: Training, policy: Policy, *, seconds: float, pace: float | None
) -> Measurement:
    spec = bench.spec
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

    plan = TimingPlan(
        warmup_steps=spec.warmup_steps,
        min_timed_steps=spec.min_timed_steps,
        max_timed_steps=spec.max_timed_steps,
        target_spread=spec.target_spread,
        measure_seconds=seconds,
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
