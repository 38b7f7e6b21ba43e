"""TIME and CONFIRM: one policy at one batch, its memory in one step, its time in many others."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from advisor.measure.batches.batches import tokens_per_sample
from advisor.measure.in_turn import Speedup, TurnPlan
from advisor.measure.measurement import Measurement, StopReason
from advisor.measure.memory.cuda import nvml_device
from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.speed.energy import EnergyMeter
from advisor.measure.timing import NEAR, Timing, TimingPlan, time_steps
from advisor.measure.typical import typical_seconds
from advisor.policy.policy import Policy
from advisor.training.training import Training
from advisor.trial.spec import Rung, TrialResult
from advisor.trial.worker.bench import Bench, finite
from advisor.trial.worker.failure import failed_result
from advisor.trial.worker.turns import gain_in_turn, speedup_in_turn
from advisor.trial.worker.updating import settling_steps, until_updated

__all__ = ["climb", "measure", "measure_smaller"]

_TIMED_SECONDS = {"cuda": 1.0, "cpu": 0.3}
"""Least seconds of timed steps: a GPU's clocks take about a second to settle, a CPU's less."""

_FEWEST_ROUNDS = 2
_MOST_ROUNDS = 12

_TURNS = 2
"""A rung of a ladder may take so many times as long as a combination's short steps in turn."""

_SPREAD_OF_RUNG = 0.03
"""Of the ratio of two batches: more turns would take the time of other combinations."""

_WORTH_ANOTHER = 0.02
"""Gain of twice the batch below which four times the batch is not looked at."""

_TIME_SHARE = 0.5
"""Share of the hard time limit that a ladder may be expected to reach."""

_SLOW_SECONDS = 0.5
"""A step that takes so long needs no other one to warm up for it than that whose memory was measured."""


def measure(bench: Bench, meter: MemoryMeter, training: Training) -> Rung:
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
        seconds=_TURNS * spec.turn_seconds if spec.ladder else spec.measure_seconds,
        pace=spec.outpaced_below_samples_per_second,
        slower_than=spec.outpaced_below_speedup,
    )


def measure_smaller(bench: Bench, meter: MemoryMeter, training: Training, measured: Rung) -> Rung | None:
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
            pace=max(
                (1 - NEAR) * measured.measurement.samples_per_second, spec.outpaced_below_samples_per_second or 0.0
            ),
            slower_than=(
                None
                if measured.speedup is None
                else max((1 - NEAR) * measured.speedup.value, spec.outpaced_below_speedup or 0.0)
            ),
        )
    except Exception as error:
        if bench.world.size > 1:
            raise  # The other ranks wait for this one.
        bench.out_of_step = "its second batch failed"
        failed = _failed(bench, error)
        batches = f"batch {smaller.micro_batch}, timed after {policy.micro_batch}"
        bench.notes.append(f"{batches}, ended as {failed.outcome.value}: {failed.reason}")
        return None


def climb(bench: Bench, meter: MemoryMeter, training: Training, first: Rung) -> tuple[Rung, ...]:
    """Measure the same training at growing micro-batches, until one is hardly faster than the best before it.

    Each takes turns with the best one before it in this process: what slows a machine down does so for both, and a
    gain of a few percent shows in steps of seconds. How many times as fast as the other it is follows from that.

    Args:
        bench: The trial's workbench.
        meter: Still entered.
        training: What was measured.
        first: Its figures.

    Returns:
        Those that went well; the trial's notes say what became of one that did not.
    """
    rungs: list[Rung] = []
    best = _Before(bench.spec.policy, bench.batches(bench.spec.policy.global_batch)[0], first)
    begin = last = time.perf_counter()
    for policy in bench.spec.ladder:
        now = time.perf_counter()
        if now - begin + 2 * (now - last) > _TIME_SHARE * bench.spec.time_limit_seconds:
            break  # what is known is worth more than a rung that the time limit takes with it
        last = now
        training.micro_batch = policy.micro_batch
        bench.empty_cache()
        try:
            rung = _measured(
                bench,
                meter,
                training,
                policy,
                seconds=_TURNS * bench.spec.turn_seconds,
                pace=None,
                slower_than=None,
                before=best,
            )
        except Exception as error:
            if bench.world.size > 1:
                raise  # The other ranks wait for this one.
            bench.out_of_step = "a larger batch failed"
            failed = _failed(bench, error)
            bench.notes.append(f"batch {policy.micro_batch} ended as {failed.outcome.value}: {failed.reason}")
            return tuple(rungs)
        rungs.append(rung)
        assert rung.gain is not None, "it took turns with the one before"
        if rung.gain.value < 1 + _WORTH_ANOTHER:
            break
        best = _Before(policy, bench.batches(policy.global_batch)[0], rung)
    return tuple(rungs)


def _failed(bench: Bench, error: Exception) -> TrialResult:
    spec = bench.spec
    return failed_result(
        spec.key, error, device=bench.device, limit_bytes=spec.memory_limit_bytes, refusals=bench.refusals
    )


class _Before(NamedTuple):
    """The best batch before one of a ladder: its policy, a batch of it on the host, and its figures."""

    policy: Policy
    batch: Any
    rung: Rung


def _measured(
    bench: Bench,
    meter: MemoryMeter,
    training: Training,
    policy: Policy,
    *,
    seconds: float,
    pace: float | None,
    slower_than: float | None,
    before: _Before | None = None,
) -> Rung:
    samples = policy.global_batch
    batches = bench.batches(samples)
    losses: list[float] = []  # no tensors: a training does not keep them on the device
    agree = bench.world.agreed
    # A larger batch of a training that has stepped needs no step to make the optimizer's state.
    settling = 1 + settling_steps(training) if before is None else 0
    if settling:
        bench.tell("first step")
    for index in range(settling):
        batch = batches[index % len(batches)]
        with meter.guarding(batch):
            losses.append(float(until_updated(training, functools.partial(training.step, batch), agree)))
        finite(losses[index], index)
    bench.tell("memory")
    measured_step = functools.partial(meter.measured_step, training, bench.largest_batch(samples, len(losses)))
    begin = time.perf_counter()
    loss, memory = until_updated(training, measured_step, agree)
    is_slow = agree(time.perf_counter() - begin > _SLOW_SECONDS)  # ranks take equally many steps
    losses.append(finite(loss, len(losses)))
    del loss

    def step() -> None:
        losses.append(float(training.step(batches[len(losses) % len(batches)])))
        bench.synchronize()

    energy = EnergyMeter(nvml_device(bench.device))
    bench.tell("timing")
    speedup: Speedup | None = None
    gain: Speedup | None = None
    joules: float | None = None
    with meter.watching() as completed:
        if before is not None:
            begin = time.perf_counter()
            step()  # alone: what the smaller batch reserves beside it is not what it takes
            alone = time.perf_counter() - begin
        # The device's energy of seconds in turn is that of two trainings.
        elif (in_turn := _in_turn(bench, step, policy, seconds, slower_than, warms_up=not is_slow)) is not None:
            timing, speedup = in_turn
        else:
            plan = _plan(bench, seconds, None if pace is None else samples / pace, warms_up=not is_slow)
            timing = time_steps(step, plan, time.perf_counter, before_timed=energy.start, agree=agree)
            joules = energy.joules(sum(timing.step_seconds))
        memory = completed(memory)
    if before is not None:
        timing, gain = _beside_smaller(bench, training, step, policy, seconds, before, alone)
        speedup = None if before.rung.speedup is None else before.rung.speedup.times(gain)
    trace = tuple(finite(loss, index) for index, loss in enumerate(losses))
    tokens = tokens_per_sample(batches[0], bench.layout.dims)
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
        making_seconds=bench.making_seconds,
        joules_per_step=None if joules is None else joules / len(timing.step_seconds),
        loss_trace=trace,
    )
    return Rung(measurement=measurement, speedup=speedup, gain=gain)


def _plan(bench: Bench, seconds: float, outpaced_above_seconds: float | None, *, warms_up: bool) -> TimingPlan:
    spec = bench.spec
    return TimingPlan(
        warmup_steps=spec.warmup_steps if warms_up else 0,
        min_timed_steps=spec.min_timed_steps,
        max_timed_steps=spec.max_timed_steps,
        target_spread=spec.target_spread,
        measure_seconds=seconds,
        min_timed_seconds=_TIMED_SECONDS.get(bench.device.type, _TIMED_SECONDS["cpu"]),
        outpaced_above_seconds=outpaced_above_seconds,
    )


def _in_turn(
    bench: Bench,
    step: Callable[[], None],
    policy: Policy,
    seconds: float,
    slower_than: float | None,
    *,
    warms_up: bool,
) -> tuple[Timing, Speedup] | None:
    """Time the steps in turn with those of another training, if there is one to take turns with."""
    beside = bench.spec.beside
    if beside is None or bench.reference is None:
        return None
    if warms_up:
        step()
    plan = _turn_plan(bench, seconds, slower_than)
    found = speedup_in_turn(bench, step, policy, beside, plan)
    if found is None:
        return None
    speedup, steps = found
    return _timing_in_turn(speedup, steps, plan), speedup


def _beside_smaller(
    bench: Bench,
    training: Training,
    step: Callable[[], None],
    policy: Policy,
    seconds: float,
    before: _Before,
    alone: float,
) -> tuple[Timing, Speedup]:
    """Time the steps in turn with those at a smaller batch of the same training, after one of ``alone`` seconds."""
    bench.reused.keep_too([before.batch])

    def larger_step() -> None:
        training.micro_batch = policy.micro_batch
        step()

    def smaller_step() -> None:
        training.micro_batch = before.policy.micro_batch
        training.step(before.batch)
        bench.synchronize()

    plan = _turn_plan(bench, seconds, None, target_spread=max(_SPREAD_OF_RUNG, bench.spec.target_spread))
    samples, fewer = policy.global_batch, before.policy.global_batch
    gain, steps = gain_in_turn(larger_step, samples, smaller_step, fewer, plan, begun=(alone,))
    training.micro_batch = policy.micro_batch
    # At the speed that the machine had for the smaller one: figures of two moments do not compare.
    rate = before.rung.measurement.samples_per_second * gain.value
    return _timing_in_turn(gain, steps, plan, middle=policy.global_batch / rate), gain


def _turn_plan(
    bench: Bench, seconds: float, slower_than: float | None, *, target_spread: float | None = None
) -> TurnPlan:
    return TurnPlan(
        min_rounds=_FEWEST_ROUNDS,
        max_rounds=_MOST_ROUNDS,
        target_spread=bench.spec.target_spread if target_spread is None else target_spread,
        seconds=seconds,
        slower_than=slower_than,
    )


def _timing_in_turn(speedup: Speedup, steps: list[float], plan: TurnPlan, *, middle: float | None = None) -> Timing:
    """The steps' times, or ``middle`` in place of what is typical of them; their interval is that of the ratio."""
    if plan.slower_than is not None and speedup.high < plan.slower_than:
        reason = StopReason.OUTPACED
    else:
        reason = StopReason.STEADY if speedup.relative_spread <= plan.target_spread else StopReason.BUDGET
    middle = typical_seconds(steps) if middle is None else middle
    return Timing(
        typical_seconds=middle,
        low_seconds=middle * speedup.value / speedup.high,
        high_seconds=middle * speedup.value / speedup.low,
        step_seconds=tuple(steps),
        warmup_seconds=(),
        stop_reason=reason,
    )
