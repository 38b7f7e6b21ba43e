"""The speedup over the baseline that a confirmation shows, and the one that it promises for the next training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from advisor.measure.in_turn import Speedup
from advisor.measure.typical import student_t_95

__all__ = ["promised", "shown"]

_BETWEEN_PROCESSES = 0.02
"""Prior standard deviation of a speedup between pairs of processes: the placement of their memory changes a training's
time."""
_PAIRS = 4
"""Weight of the prior, in pairs of processes."""


def shown(
    confirmed: Speedup,
    searched: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]] = (),
    baseline: Sequence[float] = (),
) -> Speedup:
    """The confirmation's speedup, with an interval for the mean over all pairs of processes: is it a gain at all?

    The search's measurements are a winner's, and so probably lucky: they do not move the value. The spread of one
    policy's measurements shows how much any policy's speedup differs between processes.

    Args:
        confirmed: Speedup of the emitted wrapper, alternating with the baseline in fresh processes.
        searched: The search's own speedups of the same policy, from all its alternating trials.
        others: The speedups of each other policy.
        baseline: The baseline's samples per second, each time that it was measured. Their spread is the prior for that
            of ratios; it includes what slows both down, so repeated ratios correct it.
    """
    return _within(confirmed, *_deviation((confirmed, *searched), others, baseline), pairs=1)


def promised(
    confirmed: Speedup,
    searched: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]] = (),
    baseline: Sequence[float] = (),
) -> Speedup:
    """The same speedup, with the wider interval that the next fresh pair of processes stays within."""
    # The confirmation's pair is as far from the mean of all pairs as the next one is.
    return _within(confirmed, *_deviation((confirmed, *searched), others, baseline), pairs=2)


def _deviation(
    own: Sequence[Speedup], others: Sequence[Sequence[Speedup]], baseline: Sequence[float]
) -> tuple[float, int]:
    """Variance of the log of a speedup between pairs of processes, and its degrees of freedom.

    The first of ``own`` is the confirmation's.
    """
    expected = _BETWEEN_PROCESSES**2
    if len(baseline) > 1:
        # Stalls spread its steps as much within one pair of processes, where they count already.
        between = statistics.variance(math.log(rate) for rate in baseline) - own[0].standard_error ** 2
        expected = max(expected, between)
    squares, freedom = _PAIRS * expected, _PAIRS
    for measurements in (own, *others):
        logs = [math.log(one.value) for one in measurements]
        middle = statistics.fmean(logs)
        squares += sum((one - middle) ** 2 for one in logs)
        freedom += len(logs) - 1
    return squares / freedom, freedom


def _within(confirmed: Speedup, variance: float, freedom: int, *, pairs: int) -> Speedup:
    half = student_t_95(freedom) * math.hypot(math.sqrt(pairs * variance), confirmed.standard_error)
    return Speedup(
        value=confirmed.value,
        low=confirmed.value * math.exp(-half),
        high=confirmed.value * math.exp(half),
        rounds=confirmed.rounds,
        least=confirmed.least,
    )
