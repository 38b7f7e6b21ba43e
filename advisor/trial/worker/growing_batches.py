"""Which batch to try next so that profiling runs tell how memory and time grow, and when they suffice; pure logic."""

from __future__ import annotations

import math

import torch

from advisor.measure.measurement import SizePoint
from advisor.trial.spec import HOPELESS, SizeTrial

__all__ = ["FAR", "QUICK_REPETITIONS", "QUICK_SECONDS", "looks_hopeless", "next_batch", "suffice", "telling"]

QUICK_SECONDS = 0.3
QUICK_REPETITIONS = 3
"""A quick step is timed this often: anything may have disturbed a single one."""
_TELLING_SECONDS = {"cuda": 0.2, "cpu": 0.05}
"""A device that is busy for so long is no longer waiting for the host to launch its kernels; a CPU soon is not."""
_TELLING_SHARE = 1 / 8
"""Share of the room for growth that the batch must take, so that measurements are extrapolated eightfold at most."""
_RISING_SHARE = 0.5
"""A peak that grows by less than this share of the activations is not yet set by them."""
_REACH = 4
_REACH_IN_CHUNKS = 2
"""Largest batch that is extrapolated to, as a multiple of the last one: another line may take over on the way, and
a method that works in chunks of a fixed size does as soon as they are filled."""
FAR, _FARTHEST = 8, 64
"""Multiples of its batch up to which a slope is believed as it is, and at all: kernels may need a larger batch to use
the device. In between, a slope must be steeper in proportion."""
_MOSTLY_SAMPLES = 0.5
"""Smallest share of a step that per-sample work must take; below it, the slope may be noise."""
_GROWN = 1.15
"""Growth of a step at which its samples take long enough to tell how long those of a large batch take."""
_FLAT_FACTOR = 8
"""How many times larger the next batch is while steps do not grow: it takes hardly longer."""
_TIME_SHARE = 0.6
"""Share of the hard time limit that a further point may be expected to reach."""


def next_batch(
    points: list[SizePoint],
    spec: SizeTrial,
    spent: float,
    making: float,
    settling: float = 0.0,
    *,
    instrumented: float = 0.0,
    predicted_largest: float | None = None,
    in_chunks: bool = False,
) -> int | None:
    """The next batch to try, or ``None`` when the points suffice or there is no more time.

    Args:
        points: What is known, by growing batch.
        spec: The trial.
        spent: Seconds since the first step.
        making: Seconds that the batches of the last point took to make.
        settling: Seconds of ``spent`` in which a method set itself up (compiled, say). They are not taken from the
            stepping; but a second batch may cost them once more, and the hard limit counts all.
        instrumented: Seconds of the last step that measured memory, for which every operation is followed. Where a
            method works in chunks, their number grows with the batch.
        predicted_largest: Where the points predict the memory of every batch: the largest that a timed trial may
            have; infinite for any.
        in_chunks: Whether what small batches predict must be looked at nearer to the largest one.
    """
    last = points[-1]
    # One step with instruments and those that are timed; a step takes at most as much longer as its batch is larger.
    steps = 1 + (QUICK_REPETITIONS if last.step_seconds < QUICK_SECONDS else 1)
    seconds_per_factor = steps * last.step_seconds + making
    if in_chunks:
        seconds_per_factor += max(0.0, instrumented - last.step_seconds)
    predicted = predicted_largest is not None
    wanted = 0.0
    if not predicted:
        wanted = _largest_by_line(points, spec) / _REACH
    elif in_chunks:
        wanted = _bounded(predicted_largest, spec) / _REACH_IN_CHUNKS
    factor = max(_factor(last, spec.memory_limit_bytes), _power_of_two(wanted / last.micro_batch))
    flat = predicted and spec.compare_at is None and _is_flat(points, spec)
    if flat:
        factor = max(factor, _FLAT_FACTOR)
    stepping = spent - settling
    while factor > 2 and stepping + seconds_per_factor * factor > spec.measure_seconds:
        factor //= 2
    following = last.micro_batch * factor
    if spec.largest_batch is not None:
        following = min(following, spec.largest_batch)
    if predicted_largest is not None and predicted_largest < math.inf:
        following = min(following, math.floor(predicted_largest))
    if spec.layout is not None:
        following = spec.layout.fitted(following)
    enough = (predicted or suffice(points)) and last.micro_batch >= wanted
    if following <= last.micro_batch or (enough and telling(last, spec) and not flat):
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


def _is_flat(points: list[SizePoint], spec: SizeTrial) -> bool:
    """Whether long steps take so much time for the weights alone that they do not tell how long a sample takes."""
    return (
        len(points) >= 2 and _is_long(points[-1], spec) and points[-1].step_seconds < _GROWN * points[-2].step_seconds
    )


def _is_long(point: SizePoint, spec: SizeTrial) -> bool:
    return point.step_seconds >= _TELLING_SECONDS[torch.device(spec.device).type]


def _largest_by_line(points: list[SizePoint], spec: SizeTrial) -> float:
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


def _bounded(largest: float | None, spec: SizeTrial) -> float:
    """The largest batch that there is a reason to come near to; 0 where nothing bounds it."""
    bounds = [bound for bound in (largest, spec.largest_batch) if bound is not None and bound < math.inf]
    return min(bounds, default=0.0)


def _power_of_two(factor: float) -> int:
    return 1 << max(1, math.ceil(math.log2(max(factor, 1.0))))


def telling(point: SizePoint, spec: SizeTrial) -> bool:
    """Whether a point is informative about much larger batches.

    A small batch costs no more than launching its kernels, and its memory is mostly what every batch needs.
    """
    if _is_long(point, spec):
        return True
    kept = point.memory.breakdown
    fixed = kept.parameters + kept.buffers + kept.gradients + kept.optimizer_state
    return point.memory.peak_bytes - fixed >= _TELLING_SHARE * (spec.memory_limit_bytes - fixed)


def looks_hopeless(points: list[SizePoint], spec: SizeTrial) -> bool:
    """Whether every further sample takes so long that no larger batch can come near the training it is compared with.

    A step's fixed part may be long and still not matter at large batches; the part of each sample does.
    """
    if len(points) < 2 or spec.sample_seconds_beside is None or spec.compare_at is None:
        return False
    before, last = points[-2:]
    reach = spec.compare_at / last.micro_batch
    if not 1 < reach <= _FARTHEST:
        return False
    each = (last.step_seconds - before.step_seconds) / (last.micro_batch - before.micro_batch)
    is_slow = each * HOPELESS > spec.sample_seconds_beside * max(1.0, reach / FAR)
    return is_slow and each * last.micro_batch >= _MOSTLY_SAMPLES * last.step_seconds


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
