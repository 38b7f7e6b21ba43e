"""Predict a combination's throughput at its own batch from short steps that alternate with plain training's."""

from __future__ import annotations

import math

from advisor.decide.candidate import Comparison
from advisor.measure.measurement import Sizing
from advisor.policy.policy import Policy
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel

__all__ = ["ERROR_PER_DOUBLING", "FORECAST_ERROR", "expected_at", "seconds_at"]

_CURVATURE = 0.5
"""Share of a trend between profiling runs that is extrapolated to larger batches; the rest counts as uncertain. Two
points at small batches are known to within a few percent each, and a line through them is eight times as far off at
eight times the batch."""

_WELL_ABOVE = 2
"""Multiple of the largest profiling run's batch."""

FORECAST_ERROR = 0.03
"""Smallest relative standard error of a predicted time, however well its points are known."""

_UNPAIRED_ERROR = 0.1
"""The same without alternating steps: single short steps of two trials differ by about as much by chance."""

ERROR_PER_DOUBLING = 0.03
"""Relative error of plain training's predicted time per doubling of the batch beyond the largest that was timed."""


def expected_at(
    policy: Policy, own: Sizing, reference: Sizing, reference_model: MemoryModel, *, beside: str = "plain"
) -> Comparison:
    """Predict a policy's throughput.

    Extrapolates the speedup at the batch of the comparison to the policy's own batch along both trends, and applies it
    to the reference's time there.
    """
    last = own.points[-1]
    compared_at = last.compared_at or last.micro_batch
    batch, passes = policy.micro_batch, policy.accumulation_steps
    seconds = seconds_at(reference_model, batch) * passes
    doublings = max(0.0, math.log2(batch / max(1, reference_model.timed_at)))
    speedup, errors = 1.0, [FORECAST_ERROR, ERROR_PER_DOUBLING * doublings]
    if own != reference:
        if last.speedup is not None:
            speedup = last.speedup.value
            errors.append(last.speedup.standard_error)
        else:
            speedup = reference_model.seconds(last.micro_batch) / last.step_seconds
            errors.append(_UNPAIRED_ERROR)
        there = seconds_at(reference_model, compared_at)
        growth = _growth(own, reference, compared_at, batch, own_seconds=there / speedup, other_seconds=there)
        speedup *= math.exp(growth)
        errors.append(growth)
    return Comparison(
        speedup=last.speedup,
        beside=beside,
        micro_batch=compared_at,
        at_batch=batch,
        expected_samples_per_second=speedup * policy.global_batch / seconds,
        expected_error=math.hypot(*errors),
    )


def seconds_at(model: MemoryModel, batch: int) -> float:
    """Predict step seconds, also beyond the largest timed batch, where a line through two noisy points may even fall.

    Twice the batch takes between 1.4 and twice as long.
    """
    seconds = model.seconds(batch)
    if model.timed_at == 0 or batch <= model.timed_at:
        return seconds
    ratio = batch / model.timed_at
    return min(max(seconds, model.timed_seconds * math.sqrt(ratio)), model.timed_seconds * ratio)


def _growth(
    own: Sizing, reference: Sizing, here: int, there: int, *, own_seconds: float, other_seconds: float
) -> float:
    """Expected change of a log speedup from one batch to another; zero where a line has a single point."""
    mine, others = _line(own, here, own_seconds), _line(reference, here, other_seconds)
    if mine is None or others is None:
        return 0.0
    ratios = [others.at(size) / mine.at(size) if mine.at(size) > 0 else 0.0 for size in (there, here)]
    if min(ratios) <= 0:
        return 0.0
    most = math.log(max(there, here) / min(there, here)) / 2
    return _CURVATURE * min(most, max(-most, math.log(ratios[0] / ratios[1])))


def _line(sizing: Sizing, here: int, seconds: float) -> Line | None:
    """Step seconds against the batch; from the largest profiling run to the comparison if that was well above it.

    A line through two small batches with nearly equal steps says nothing about a batch ten times as large.
    """
    last = sizing.points[-1]
    if here >= _WELL_ABOVE * last.micro_batch:
        slope = (seconds - last.step_seconds) / (here - last.micro_batch)
        return Line(seconds - slope * here, slope)
    return MemoryModel.fit(sizing).time if len(sizing.points) > 1 else None
