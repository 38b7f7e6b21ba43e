"""Predict a combination's throughput at its own batch from short steps that alternate with plain training's."""

from __future__ import annotations

import math

import msgspec

from advisor.decide.candidate import Comparison
from advisor.decide.noise import CHANGE_PER_DOUBLING
from advisor.measure.measurement import Sizing
from advisor.policy.policy import Policy
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel

__all__ = ["ERROR_PER_DOUBLING", "FORECAST_ERROR", "expected_at", "sample_seconds_at", "seconds_at"]

_STEP_ERROR = 0.07
"""Relative standard error of a profiling run's one timed step."""

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
        lines = _line(own, compared_at, there / speedup), _line(reference, compared_at, there)
        growth, error = _growth(*lines, compared_at, batch, known=seconds / passes)
        speedup *= math.exp(growth)
        errors.append(error)
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


def sample_seconds_at(model: MemoryModel | None, batch: int | None) -> float | None:
    """Predict seconds per sample, where both are known."""
    return None if model is None or batch is None else seconds_at(model, batch) / batch


def _growth(
    mine: _Extrapolation | None, others: _Extrapolation | None, here: int, there: int, *, known: float
) -> tuple[float, float]:
    """Expected change of a log speedup from one batch to another, and its standard error.

    Lines through two small batches say little about a batch ten times as large: a speedup changes as much as they say
    only as far as their error is small beside the usual change. How far the other's line misses its time that is
    known there shows that error as well.

    Args:
        mine: Step seconds of the combination; ``None`` if too little is known.
        others: The same of what it is compared with.
        here: Batch of the comparison.
        there: The other batch.
        known: Step seconds of the other there, which do not come from this line alone.
    """
    usual = CHANGE_PER_DOUBLING * abs(math.log2(there / here))
    if usual == 0 or mine is None or others is None:
        return 0.0, usual
    ratios = [others.line.at(size) / mine.line.at(size) if mine.line.at(size) > 0 else 0.0 for size in (there, here)]
    if min(ratios) <= 0:
        return 0.0, usual
    most = math.log(max(there, here) / min(there, here))
    seen = min(most, max(-most, math.log(ratios[0] / ratios[1])))
    error = math.hypot(mine.error_at(there), others.error_at(there), math.log(others.line.at(there) / known))
    believed = usual**2 / (usual**2 + error**2)
    return believed * seen, math.sqrt(believed) * error


class _Extrapolation(msgspec.Struct, frozen=True):
    """A line through two batches.

    Attributes:
        line: Seconds against the batch.
        smaller: The smaller batch, and the larger.
        larger: Where the error is that of a single step, as at the smaller one.
    """

    line: Line
    smaller: int
    larger: int

    def error_at(self, batch: int) -> float:
        """Relative standard error of the line at a batch."""
        width = self.larger - self.smaller
        errors = [
            _STEP_ERROR * self.line.at(near) * (batch - far) / width
            for near, far in ((self.smaller, self.larger), (self.larger, self.smaller))
        ]
        return math.hypot(*errors) / self.line.at(batch)


def _line(sizing: Sizing, here: int, seconds: float) -> _Extrapolation | None:
    """Step seconds against the batch; from the largest profiling run to the comparison if that was well above it.

    A line through two small batches with nearly equal steps says nothing about a batch ten times as large.
    """
    last = sizing.points[-1]
    if here >= _WELL_ABOVE * last.micro_batch:
        slope = (seconds - last.step_seconds) / (here - last.micro_batch)
        return _Extrapolation(Line(seconds - slope * here, slope), last.micro_batch, here)
    if len(sizing.points) < 2:
        return None
    return _Extrapolation(MemoryModel.fit(sizing).time, sizing.points[-2].micro_batch, last.micro_batch)
