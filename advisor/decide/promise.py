"""The speedup over the baseline that a confirmation shows, and the one that it promises for the next training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from advisor.measure.in_turn import Speedup
from advisor.measure.typical import student_t_95

__all__ = ["is_certain", "promised", "shown", "together"]

_BETWEEN_PROCESSES = 0.02
"""Prior standard deviation of a speedup between pairs of processes: the placement of their memory changes a training's
time."""
_PAIRS = 4
"""Weight of the prior, in pairs of processes."""


_CERTAIN = 1.5
"""Upper over lower end of a promise that is worth no further pair of processes."""


def together(confirmed: Sequence[Speedup]) -> Speedup:
    """The mean of confirmations in several pairs of processes, with what is uncertain within them."""
    if len(confirmed) == 1:
        return confirmed[0]
    count = len(confirmed)
    value = math.exp(statistics.fmean(math.log(one.value) for one in confirmed))
    below = math.hypot(*(math.log(one.value / one.low) for one in confirmed)) / count
    above = math.hypot(*(math.log(one.high / one.value) for one in confirmed)) / count
    return Speedup(
        value=value,
        low=value * math.exp(-below),
        high=value * math.exp(above),
        rounds=sum(one.rounds for one in confirmed),
        least=min(one.least for one in confirmed),
    )


def is_certain(shown: Speedup, promise: Speedup) -> bool:
    """Whether another pair of processes is worth no time: it is hardly a gain, or one whose size is known well."""
    return shown.value <= 1 or (shown.low > 1 and promise.high <= _CERTAIN * promise.low)


def shown(
    confirmed: Sequence[Speedup],
    searched: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]] = (),
    baseline: Sequence[float] = (),
) -> Speedup:
    """The confirmation's speedup, with an interval for the mean over all pairs of processes: is it a gain at all?

    The search's measurements are a winner's, and so probably lucky: they do not move the value. The spread of one
    policy's measurements shows how much any policy's speedup differs between processes.

    Args:
        confirmed: Speedup of the emitted wrapper, alternating with the baseline, in each pair of fresh processes.
        searched: The search's own speedups of the same policy, from all its alternating trials.
        others: The speedups of each other policy.
        baseline: The baseline's samples per second, each time that it was measured. Their spread is the prior for that
            of ratios; it includes what slows both down, so repeated ratios correct it.
    """
    return _within(confirmed, *_deviation(confirmed, searched, others, baseline), apart=1 / len(confirmed))


def promised(
    confirmed: Sequence[Speedup],
    searched: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]] = (),
    baseline: Sequence[float] = (),
) -> Speedup:
    """The same speedup, with the wider interval that the next fresh pair of processes stays within."""
    # A single confirmation is as far from the mean of all pairs as the next one is.
    return _within(confirmed, *_deviation(confirmed, searched, others, baseline), apart=1 + 1 / len(confirmed))


def _deviation(
    confirmed: Sequence[Speedup],
    searched: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]],
    baseline: Sequence[float],
) -> tuple[float, int]:
    """Variance of the log of a speedup between pairs of processes, and its degrees of freedom."""
    expected = _BETWEEN_PROCESSES**2
    if len(baseline) > 1:
        # Stalls spread its steps as much within one pair of processes, where they count already.
        between = statistics.variance(math.log(rate) for rate in baseline) - confirmed[0].standard_error ** 2
        expected = max(expected, between)
    squares, freedom = _PAIRS * expected, _PAIRS
    for measurements in ((*confirmed, *searched), *others):
        logs = [math.log(one.value) for one in measurements]
        middle = statistics.fmean(logs)
        squares += sum((one - middle) ** 2 for one in logs)
        freedom += len(logs) - 1
    return squares / freedom, freedom


def _within(confirmed: Sequence[Speedup], variance: float, freedom: int, *, apart: float) -> Speedup:
    """The mean, with an interval for what is so many variances between pairs apart from it."""
    mean = together(confirmed)
    half = student_t_95(freedom) * math.hypot(math.sqrt(apart * variance), mean.standard_error)
    return msgspec.structs.replace(mean, low=mean.value * math.exp(-half), high=mean.value * math.exp(half))
