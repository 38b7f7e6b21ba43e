"""The figures of one policy, or of its wrapper; and, in the same process, of other batches of the same methods."""

from __future__ import annotations

import time
from pathlib import Path

from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.timing import NEAR
from advisor.training.training import Training
from advisor.trial.outcome import Outcome
from advisor.trial.result import ConfirmResult, Rung, TimeResult
from advisor.trial.spec import ConfirmTrial, TimeTrial
from advisor.trial.worker.alternate import load_partner
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.failure import failed_result
from advisor.trial.worker.timed_steps import Earlier, Limits, measured

__all__ = ["climb", "confirm", "measure_smaller", "time_policy"]

_TURNS = 2
"""A rung of a ladder may take so many times as long as a combination's short steps in turn."""

_WORTH_ANOTHER = 0.02
"""Gain of twice the batch below which four times the batch is not looked at."""

_TIME_SHARE = 0.5
"""Share of the hard time limit that a ladder may be expected to reach."""


def time_policy(bench: Bench[TimeTrial]) -> TimeResult:
    """Run the trial.

    Raises:
        DeviceOutOfMemoryError: The policy does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec = bench.spec
    with bench.meter() as meter, bench.training(spec.policy) as training:
        seconds = _TURNS * spec.turn_seconds if spec.ladder else spec.measure_seconds
        limits = Limits(seconds, spec.outpaced_below_samples_per_second, spec.outpaced_below_speedup)
        first = measured(bench, meter, training, spec.policy, limits)
        ladder = climb(bench, meter, training, first) if spec.ladder else ()
        smaller = None if spec.smaller is None else measure_smaller(bench, meter, training, first)
    return spec.ended(
        Outcome.OK,
        measurement=first.measurement,
        speedup=first.speedup,
        smaller=None if smaller is None else smaller.measurement,
        smaller_speedup=None if smaller is None else smaller.speedup,
        ladder=ladder,
        paces=tuple(bench.paces),
    )


def confirm(bench: Bench[ConfirmTrial]) -> ConfirmResult:
    """Run the trial; raises the same."""
    spec = bench.spec
    load_partner(bench)
    with bench.meter() as meter, bench.wrapped_training(Path(spec.wrapper_path), spec.wrapper_text) as training:
        limits = Limits(spec.measure_seconds, spec.outpaced_below_samples_per_second, spec.outpaced_below_speedup)
        found = measured(bench, meter, training, spec.policy, limits)
    return spec.ended(Outcome.OK, measurement=found.measurement, speedup=found.speedup, paces=tuple(bench.paces))


def measure_smaller(bench: Bench[TimeTrial], meter: MemoryMeter, training: Training, larger: Rung) -> Rung | None:
    """Measure the same training at the smaller micro-batch that is asked for, in about half the time.

    It is compared with the larger one on the way, and timed no further once it is clearly slower. Whatever becomes of
    it, the figures of the larger one stand.

    Args:
        bench: The trial's workbench.
        meter: Still entered.
        training: What was measured.
        larger: Its figures.

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
        limits = Limits(
            seconds=spec.measure_seconds / 2,
            pace=max((1 - NEAR) * larger.measurement.samples_per_second, spec.outpaced_below_samples_per_second or 0.0),
            slower_than=(
                None
                if larger.speedup is None
                else max((1 - NEAR) * larger.speedup.value, spec.outpaced_below_speedup or 0.0)
            ),
        )
        return measured(bench, meter, training, smaller, limits)
    except Exception as error:
        if bench.world.size > 1:
            raise  # The other ranks wait for this one.
        bench.out_of_step = "its second batch failed"
        failed = failed_result(bench.spec, error, refusals=bench.refusals)
        batches = f"batch {smaller.micro_batch}, timed after {policy.micro_batch}"
        bench.notes.append(f"{batches}, ended as {failed.outcome.value}: {failed.reason}")
        return None


def climb(bench: Bench[TimeTrial], meter: MemoryMeter, training: Training, first: Rung) -> tuple[Rung, ...]:
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
    best = Earlier(bench.spec.policy, bench.data.batches(bench.spec.policy.global_batch)[0], first)
    begin = last = time.perf_counter()
    for policy in bench.spec.ladder:
        now = time.perf_counter()
        if now - begin + 2 * (now - last) > _TIME_SHARE * bench.spec.time_limit_seconds:
            break  # what is known is worth more than a rung that the time limit takes with it
        last = now
        training.micro_batch = policy.micro_batch
        bench.empty_cache()
        try:
            limits = Limits(_TURNS * bench.spec.turn_seconds)
            rung = measured(bench, meter, training, policy, limits, before=best)
        except Exception as error:
            if bench.world.size > 1:
                raise  # The other ranks wait for this one.
            bench.out_of_step = "a larger batch failed"
            failed = failed_result(bench.spec, error, refusals=bench.refusals)
            bench.notes.append(f"batch {policy.micro_batch} ended as {failed.outcome.value}: {failed.reason}")
            return tuple(rungs)
        rungs.append(rung)
        assert rung.gain is not None, "it took turns with the one before"
        if rung.gain.value < 1 + _WORTH_ANOTHER:
            break
        best = Earlier(policy, bench.data.batches(policy.global_batch)[0], rung)
    return tuple(rungs)
