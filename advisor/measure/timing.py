"""How long a training step takes: warm up until steady, then measure until the answer is sure enough.

Pure logic: the clock and the step are given, so that every rule is tested without waiting.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from advisor.measure.measurement import StopReason

__all__ = ["NEAR", "Agree", "Timing", "TimingPlan", "alone", "median_interval", "time_steps"]

_T = TypeVar("_T")


class Agree(Protocol):
    """Makes a decision the same on all ranks that take it together."""

    def __call__(self, value: _T, kind: Any = Any) -> _T:
        """What was decided for all, given what this rank would decide and the type that it is read back as."""


def alone(value: _T, kind: Any = Any) -> _T:
    """Agreement of a process with nobody but itself."""
    return value


NEAR = 0.05
"""Lead of one figure over another that may be luck: a machine that others use too drifts by as much between trials."""

_STEADY_GAIN = 0.05
"""Warm-up goes on while a step is faster than the best before it by more than this share."""
_MOST_WARMUP_STEPS = 10
_MOST_TIMED_STEPS = 1000
_STUDENT_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447}
"""Two-sided 95 % quantiles of Student's t distribution for a number of *values* (degrees of freedom + 1)."""


class TimingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop.

    Attributes:
        warmup_steps: Fewest untimed steps; 0 for none at all.
        min_timed_steps: Fewest timed steps; two are taken in any case, one has no spread.
        max_timed_steps: Most timed steps, once they have taken ``min_timed_seconds``; 1000 before.
        target_spread: Stop when the interval's half-width is below this share of the median.
        measure_seconds: Stop adding steps after this many seconds, once there are ``min_timed_steps``.
        min_timed_seconds: The timed steps take at least this long together, if ``measure_seconds`` allows it. A few
            steps of milliseconds agree with each other and yet say nothing about clocks that rise and fall.
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
    """What was measured.

    Attributes:
        median_seconds: Median of the timed steps.
        low_seconds: Lower end of its 95 % confidence interval.
        high_seconds: Upper end.
        step_seconds: Every timed step, in order.
        warmup_seconds: Every warm-up step, in order.
        stop_reason: Why it ended.
    """

    median_seconds: float
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
        agree: Every decision goes through it: ranks whose clocks differ must take equally many steps.
    """
    begin = clock()

    def timed() -> float:
        start = clock()
        step()
        return clock() - start

    warmup: list[float] = []
    while plan.warmup_steps > 0 and (
        len(warmup) < plan.warmup_steps
        or agree(
            _still_warming(warmup, (clock() - begin) / plan.measure_seconds),
        )
    ):
        warmup.append(timed())
    if before_timed is not None:
        before_timed()
    steps: list[float] = []
    reason = None
    while reason is None:
        steps.append(timed())
        reason = agree(_stop_reason(steps, plan, clock() - begin), StopReason | None)
    low, high = median_interval(steps)
    return Timing(
        median_seconds=statistics.median(steps),
        low_seconds=low,
        high_seconds=high,
        step_seconds=tuple(steps),
        warmup_seconds=tuple(warmup),
        stop_reason=reason,
    )


def _still_warming(warmup: Sequence[float], spent_share: float) -> bool:
    """Whether one more warm-up step is worth its time, after the fewest that were asked for."""
    if len(warmup) >= _MOST_WARMUP_STEPS:
        return False
    if len(warmup) < 2:
        return spent_share < 0.1  # two steps to compare, unless steps are dear
    return spent_share < 0.5 and warmup[-1] < (1 - _STEADY_GAIN) * min(warmup[:-1])


def _stop_reason(steps: Sequence[float], plan: TimingPlan, spent: float) -> StopReason | None:
    middle = statistics.median(steps)
    outpaced = plan.outpaced_above_seconds
    if outpaced is not None and len(steps) >= 3 and middle > outpaced and median_interval(steps)[0] > outpaced:
        return StopReason.OUTPACED
    if len(steps) < max(2, plan.min_timed_steps):
        return None
    if sum(steps) >= plan.min_timed_seconds or len(steps) >= _MOST_TIMED_STEPS:
        low, high = median_interval(steps)
        if high - low <= 2 * plan.target_spread * middle:
            return StopReason.STEADY
        if len(steps) >= plan.max_timed_steps:
            return StopReason.BUDGET
    return StopReason.BUDGET if spent >= plan.measure_seconds else None


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % confidence interval of the median.

    From eight values on by order statistics: the k-th smallest and the k-th largest value, where k is as large as
    the binomial distribution allows; it holds for any distribution and a few slow steps do not widen it. For fewer
    values no order statistics reach 95 %, or only the two extremes do: there Student's interval around the median,
    which an outlier widens, so that it errs towards "not sure yet". One value says nothing: (0, infinity).

    Source: Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2.
    """
    count = len(values)
    middle = statistics.median(values)
    if count == 1:
        return 0.0, math.inf
    if count in _STUDENT_T_95:
        half = _STUDENT_T_95[count] * statistics.stdev(values) / math.sqrt(count)
        return max(0.0, middle - half), middle + half
    ordered = sorted(values)
    rank = _order_rank(count)
    return ordered[rank - 1], ordered[count - rank]


def _order_rank(count: int) -> int:
    """The largest k with P(fewer than k of ``count`` fair coins show heads) <= 2.5 %."""
    # In whole numbers, one from the next: hundreds of steps are looked at between steps of less than a millisecond.
    ways = tail = 1
    rank = 0
    while 40 * tail <= 2**count:
        ways = ways * (count - rank) // (rank + 1)
        tail += ways
        rank += 1
    return rank
