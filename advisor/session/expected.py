"""From short steps in turn with plain training to what a combination will do at its own batch."""

from __future__ import annotations

import math

from advisor.decide.candidate import Comparison
from advisor.measure.measurement import Sizing
from advisor.policy.policy import Policy
from advisor.search.memory_model import MemoryModel

__all__ = ["expected_at"]

_CURVATURE = 0.5
"""Share of what two lines through short runs say about larger batches that is believed; the rest is doubted. Two points
at small batches are known to within a few percent each, and a line through them is eight times as far off at eight
times the batch."""

_FORECAST_ERROR = 0.03
"""Standard error of any forecast of a time, however well its points are known."""

_UNPAIRED_ERROR = 0.1
"""The same where nobody took turns: single short steps of two trials are about as far apart by chance."""

_ERROR_PER_DOUBLING = 0.03
"""What the time of plain training is off by for every doubling of the batch beyond the largest that was timed."""


def expected_at(policy: Policy, own: Sizing, plain: Sizing, plain_model: MemoryModel) -> Comparison:
    """What a policy is expected to do.

    The speedup at the batch of the comparison is carried over to the policy's own by the lines of both, and applied to
    what is known of plain training there.

    Args:
        policy: The policy, on one device.
        own: Its short runs.
        plain: Those of plain training.
        plain_model: Plain training's times, with all that was learned since.
    """
    last = own.points[-1]
    compared_at = last.compared_at or last.micro_batch
    batch, passes = policy.micro_batch, policy.accumulation_steps
    plain_seconds = plain_model.seconds(batch, passes)
    doublings = max(0.0, math.log2(batch / max(1, plain_model.timed_at)))
    if own == plain:
        error = math.hypot(_FORECAST_ERROR, _ERROR_PER_DOUBLING * doublings)
        return Comparison(
            speedup=None,
            micro_batch=compared_at,
            at_batch=batch,
            expected_samples_per_second=policy.global_batch / plain_seconds,
            expected_error=error,
        )
    if last.speedup is not None:
        speedup, error = last.speedup.value, last.speedup.standard_error
    else:
        speedup, error = plain_model.seconds(last.micro_batch) / last.step_seconds, _UNPAIRED_ERROR
    lines = MemoryModel.fit(plain).time, MemoryModel.fit(own).time
    there, here = (lines[0].at(size) / max(lines[1].at(size), 1e-9) for size in (batch, compared_at))
    growth = math.log(there / here) if there > 0 and here > 0 else 0.0
    speedup *= math.exp(_CURVATURE * growth)
    error = math.hypot(error, _CURVATURE * growth, _FORECAST_ERROR, _ERROR_PER_DOUBLING * doublings)
    return Comparison(
        speedup=last.speedup,
        micro_batch=compared_at,
        at_batch=batch,
        expected_samples_per_second=speedup * policy.global_batch / plain_seconds,
        expected_error=error,
    )
