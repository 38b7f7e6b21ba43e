"""Time training steps: warm up until steady, then measure until the result is certain enough.

Pure logic: the clock and the step are given, so that every rule is tested without waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from advisor.measure.measurement import StopReason
from advisor.measure.typical import typical_interval, typical_seconds

__all__ = ["NEAR", "Agree", "Timing", "TimingPlan", "alone", "time_steps"]

_T = TypeVar("_T")


class Agree(Protocol):
    """Makes a decision the same on all ranks that take it together."""

    def __call__(self, value: _T, kind: Any = Any) -> _T:
        """Return the common decision, given this rank's own and the type to decode it as."""


def alone(value: _T, kind: Any = Any) -> _T:
    """Agreement of a single process: its own decision."""
    return value


NEAR = 0.05
"""Lead of one measurement over another that may be luck: a shared machine drifts this much between trials."""

_STEADY_GAIN = 0.05
"""Warm-up continues while a step is faster than the best before it by more than this share."""
_MOST_WARMUP_STEPS = 10
_MOST_TIMED_STEPS = 1000


class TimingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop.

    Attributes:
        warmup_steps: Fewest untimed steps; 0 for none at all.
        min_timed_steps: Fewest timed steps; two are taken in any case, one has no spread.
        max_timed_steps: Most timed steps, once they have taken ``min_timed_seconds``; 1000 before.
        target_spread: Stop when the interval's half-width is below this share of a step's time.
        measure_seconds: Stop adding steps after this many seconds, once there are ``min_timed_steps``.
        min_timed_seconds: Least total time of the timed steps, if ``measure_seconds`` allows it. A few steps of
            milliseconds may agree and still miss varying clocks.
        outpaced_above_seconds: Stop when even the lower end of the interval is above this, else ``None``.
    """

    warmup_steps: int
    min_timed_steps: int
    max_timed_steps: int
    target_spread: float
    measure_seconds: float
    min_timed_seconds: float = 0.0
    outpaced_above_seconds: float | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Measured step times.

    Attributes:
        typical_seconds: A step's time in the long run: the median of the timed ones, or the mean if many stall.
        low_seconds: Lower end of its 95 % confidence interval.
        high_seconds: Upper end.
        step_seconds: Every timed step, in order.
        warmup_seconds: Every warm-up step, in order.
        stop_reason: Why it ended.
    """

    typical_seconds: float
    low_seconds: float
    high_seconds: float
    step_seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...]
    stop_reason: StopReason


def time_steps(
    step: Callable[[], None],
    plan: TimingPlan,
    clock: Callable[[], float],
    *,
    before_timed: Callable[[], None] | None = None,
    agree: Agree = alone,
) -> Timing:
    """Run ``step`` until its time is known.

    Args:
        step: One whole step; it returns when the device has finished it.
        plan: When to stop.
        clock: Seconds from any fixed moment, such as ``time.perf_counter``.
        before_timed: Called once between warm-up and the timed steps.
        agree: Makes every decision common to all ranks: despite different clocks they must make equally many steps.
    """
    begin = clock()

    def timed() -> float:
        start = clock()
        step()
        return clock() - start

    warmup: list[float] = []
    while plan.warmup_steps > 0 and (
        len(warmup) < plan.warmup_steps or agree(_still_warming(warmup, (clock() - begin) / plan.measure_seconds))
    ):
        warmup.append(timed())
    if before_timed is not None:
        before_timed()
    steps: list[float] = []
    reason = None
    while reason is None:
        steps.append(timed())
        reason = agree(_stop_reason(steps, plan, clock() - begin), StopReason | None)
    low, high = typical_interval(steps)
    return Timing(
        typical_seconds=typical_seconds(steps),
        low_seconds=low,
        high_seconds=high,
        step_seconds=tuple(steps),
        warmup_seconds=tuple(warmup),
        stop_reason=reason,
    )


def _still_warming(warmup: Sequence[float], spent_share: float) -> bool:
    """Whether one more warm-up step is worth its time, after the requested minimum."""
    if len(warmup) >= _MOST_WARMUP_STEPS:
        return False
    if len(warmup) < 2:
        return spent_share < 0.1  # two steps to compare, unless steps are dear
    return spent_share < 0.5 and warmup[-1] < (1 - _STEADY_GAIN) * min(warmup[:-1])


def _stop_reason(steps: Sequence[float], plan: TimingPlan, spent: float) -> StopReason | None:
    middle = typical_seconds(steps)
    outpaced = plan.outpaced_above_seconds
    if outpaced is not None and len(steps) >= 3 and middle > outpaced and typical_interval(steps)[0] > outpaced:
        return StopReason.OUTPACED
    if len(steps) < max(2, plan.min_timed_steps):
        return None
    if sum(steps) >= plan.min_timed_seconds or len(steps) >= _MOST_TIMED_STEPS:
        low, high = typical_interval(steps)
        if high - low <= 2 * plan.target_spread * middle:
            return StopReason.STEADY
        if len(steps) >= plan.max_timed_steps:
            return StopReason.BUDGET
    return StopReason.BUDGET if spent >= plan.measure_seconds else None
