"""From short steps in turn with plain training to what a combination will do at its own batch."""

from __future__ import annotations

import math

from advisor.decide.candidate import Comparison
from advisor.measure.measurement import Sizing
from advisor.policy.policy import Policy
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel

__all__ = ["ERROR_PER_DOUBLING", "FORECAST_ERROR", "expected_at", "seconds_at"]

_CURVATURE = 0.5
"""Share of what two lines through short runs say about larger batches that is believed; the rest is doubted. Two points
at small batches are known to within a few percent each, and a line through them is eight times as far off at eight
times the batch."""

_WELL_ABOVE = 2
"""Times the largest short run."""

FORECAST_ERROR = 0.03
"""Standard error of any forecast of a time, however well its points are known."""

_UNPAIRED_ERROR = 0.1
"""The same where nobody took turns: single short steps of two trials are about as far apart by chance."""

ERROR_PER_DOUBLING = 0.03
"""What the time of plain training is off by for every doubling of the batch beyond the largest that was timed."""


def expected_at(
    policy: Policy, own: Sizing, reference: Sizing, reference_model: MemoryModel, *, beside: str = "plain"
) -> Comparison:
    """What a policy is expected to do.

    The speedup at the batch of the comparison is carried over to the policy's own by the lines of both, and applied to
    what is known of the other one there.

    Args:
        policy: The policy, on one device.
        own: Its short runs.
        reference: Those of what it took turns with.
        reference_model: The times of that, with all that was learned since.
        beside: Its label.
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
    """Of a step beyond the largest batch that was timed: a line through two noisy small ones may even fall.

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
    """By what log a speedup is expected to be larger at another batch; nothing where a line has a single point.

    Args:
        own: The short runs of the one.
        reference: Those of the other.
        here: The batch of the comparison.
        there: The other batch.
        own_seconds: Of a step of the one at the batch of the comparison.
        other_seconds: The same of the other.
    """
    mine, others = _line(own, here, own_seconds), _line(reference, here, other_seconds)
    if mine is None or others is None:
        return 0.0
    ratios = [others.at(size) / mine.at(size) if mine.at(size) > 0 else 0.0 for size in (there, here)]
    if min(ratios) <= 0:
        return 0.0
    most = math.log(max(there, here) / min(there, here)) / 2
    return _CURVATURE * min(most, max(-most, math.log(ratios[0] / ratios[1])))


def _line(sizing: Sizing, here: int, seconds: float) -> Line | None:
    """Seconds of a step against the batch; from the largest short run to the comparison where that was well above it.

    A line through two small batches, whose steps take nearly the same time, says nothing of one ten times as large.
    """
    last = sizing.points[-1]
    if here >= _WELL_ABOVE * last.micro_batch:
        slope = (seconds - last.step_seconds) / (here - last.micro_batch)
        return Line(seconds - slope * here, slope)
    return MemoryModel.fit(sizing).time if len(sizing.points) > 1 else None
