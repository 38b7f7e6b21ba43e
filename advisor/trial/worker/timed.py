"""Measure one policy, or its wrapper; and, in the same process, other batches with the same methods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.timing import NEAR
from advisor.policy.policy import Policy
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
"""Time of a ladder's rung, as a multiple of the time of a combination's alternating profiling steps."""

_WORTH_ANOTHER = 0.02
"""If a larger batch gains less than this, none larger still is tried."""

_CLEAR_GAIN, _FURTHER_GAIN = 1.25, 1.1
"""Expected gains of a batch, and of the next one over it, from which only the next one is measured."""

_AS_EXPECTED = 0.95
"""Share of the expected gain that the larger one must reach, or the one left out is measured after all."""

_TIME_SHARE = 0.5
"""Share of the hard time limit that a ladder may use: a trial killed in it would lose all measurements."""

_TRIALS_OF_LADDER = 2.0
"""Time that a ladder may use, as a multiple of the stepping of one trial: other combinations need theirs too."""


def time_policy(bench: Bench[TimeTrial]) -> TimeResult:
    """Run the trial.

    Raises:
        DeviceOutOfMemoryError: The policy does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec, began = bench.spec, time.perf_counter()
    with bench.meter() as meter, bench.training(spec.policy) as training:
        seconds = _TURNS * spec.turn_seconds if spec.ladder else spec.measure_seconds
        limits = Limits(seconds, spec.outpaced_below_samples_per_second, spec.outpaced_below_speedup)
        since = time.perf_counter()
        first = measured(bench, meter, training, spec.policy, limits)
        taken = time.perf_counter() - since
        ladder = climb(bench, meter, training, first, taken=taken, began=began) if spec.ladder else ()
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
    """Measure the same training at the requested smaller micro-batch, in about half the time.

    Timing stops once it is clearly slower than the larger one. ``None`` if it failed: a note says why.
    """
    spec = bench.spec
    smaller, policy = spec.smaller, spec.policy
    assert smaller is not None, "a second batch was requested"
    assert smaller.micro_batch < policy.micro_batch, f"smaller than {policy.micro_batch}, got {smaller.micro_batch}"
    assert smaller.combination_key == policy.combination_key, "the training is built already"
    assert smaller.gpu_count == policy.gpu_count, "likewise"
    limits = Limits(
        seconds=spec.measure_seconds / 2,
        pace=max((1 - NEAR) * larger.measurement.samples_per_second, spec.outpaced_below_samples_per_second or 0.0),
        slower_than=(
            None
            if larger.speedup is None
            else max((1 - NEAR) * larger.speedup.value, spec.outpaced_below_speedup or 0.0)
        ),
    )
    words = f"batch {smaller.micro_batch}, timed after {policy.micro_batch},"
    return _measured_as_well(bench, meter, training, smaller, limits, words)


def climb(
    bench: Bench[TimeTrial], meter: MemoryMeter, training: Training, first: Rung, *, taken: float, began: float
) -> tuple[Rung, ...]:
    """Measure the same training at growing micro-batches, until one fails or is hardly faster than the best before it.

    Each alternates with the best one before it in this process: interference slows both equally, so seconds of
    stepping reveal a gain of a few percent. The speedup follows from the gain.

    A batch that is expected to be clearly better than the one before it, and worse than the one after it, is left out.
    If the larger one fails or gains less than expected, the one left out is measured after all. The one before the last
    is never left out: the last may fill the memory, and it fails more often than others.

    Args:
        bench: The trial's workbench.
        meter: Already entered.
        training: The training, which was measured at the policy's batch.
        first: What came of that.
        taken: How many seconds it took.
        began: When the trial began.

    Returns:
        The batches that were measured, in growing order.
    """
    ladder, expected = bench.spec.ladder, bench.spec.expected_gains
    rungs: list[Rung] = []
    best = Earlier(bench.spec.policy, bench.data.batches(bench.spec.policy.global_batch)[0], first)
    allowed = min(_TIME_SHARE * bench.spec.time_limit_seconds, _TRIALS_OF_LADDER * bench.spec.measure_seconds)
    begin, seconds_per_sample = time.perf_counter(), 0.0

    def has_time(policy: Policy) -> bool:
        """Whether it can be measured in time, if that takes as long for each of its samples as for the last batch."""
        now, per_sample = time.perf_counter(), seconds_per_sample or taken / bench.spec.policy.micro_batch
        end = bench.spec.ladder_seconds
        if end is not None and now - began + per_sample * policy.micro_batch > end:
            return False
        return now - begin + seconds_per_sample * policy.micro_batch <= allowed

    def gain_at(policy: Policy) -> float | None:
        """Measure it and return its gain over the best one, which it becomes if it is better; ``None`` if it failed."""
        nonlocal best, seconds_per_sample
        since = time.perf_counter()
        limits = Limits(_TURNS * bench.spec.turn_seconds)
        rung = _measured_as_well(bench, meter, training, policy, limits, f"batch {policy.micro_batch}", before=best)
        seconds_per_sample = (time.perf_counter() - since) / policy.micro_batch
        if rung is None:
            training.model.zero_grad(set_to_none=True)  # those of a pass that failed would count for the next batch
            return None
        rungs.append(rung)
        assert rung.gain is not None, "it alternated with the best one"
        if rung.gain.value >= 1 + _WORTH_ANOTHER:
            best = Earlier(policy, bench.data.batches(policy.global_batch)[0], rung)
        return rung.gain.value

    place = 0
    while place < len(ladder) and has_time(ladder[place]):
        left_out = None
        if _is_surely_between(expected[place:-1]) and has_time(ladder[place + 1]):
            left_out, due = ladder[place], _AS_EXPECTED * expected[place] * expected[place + 1]
            place += 1
        gain = gain_at(ladder[place])
        if left_out is not None and (gain is None or gain < due) and has_time(left_out):
            gain_at(left_out)
        if gain is None or gain < 1 + _WORTH_ANOTHER or best.policy == left_out:
            break
        place += 1
    return tuple(sorted(rungs, key=lambda rung: rung.measurement.micro_batch))


def _is_surely_between(gains: Sequence[float]) -> bool:
    """Whether the first batch is expected to be clearly better than the one before it, and worse than the next one."""
    return len(gains) >= 2 and gains[0] >= _CLEAR_GAIN and gains[1] >= _FURTHER_GAIN


def _measured_as_well(
    bench: Bench[TimeTrial],
    meter: MemoryMeter,
    training: Training,
    policy: Policy,
    limits: Limits,
    words: str,
    *,
    before: Earlier | None = None,
) -> Rung | None:
    """Measure the training at another batch; if that fails, a note says so in these words."""
    training.micro_batch = policy.micro_batch
    bench.empty_cache()  # memory reserved for the batch before must not count for this one
    try:
        return measured(bench, meter, training, policy, limits, before=before)
    except Exception as error:
        if bench.world.size > 1:
            raise  # the other ranks wait for this one
        bench.out_of_step = f"{words} failed"
        failed = failed_result(bench.spec, error, refusals=bench.refusals)
        bench.notes.append(f"{words} ended as {failed.outcome.value}: {failed.reason}")
        return None
