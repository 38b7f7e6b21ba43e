"""What a confirmation shows of a speedup over the baseline, and what it promises of the next training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from advisor.measure.in_turn import Speedup
from advisor.measure.typical import student_t_95

__all__ = ["promised", "shown"]

_BETWEEN_PROCESSES = 0.02
"""Least standard deviation of a speedup from one pair of processes to the next before anything is known: where their
memory comes to lie changes a training's time."""
_PAIRS = 4
"""As how many pairs of processes it counts what is expected of them."""


def shown(
    confirmed: Speedup,
    searched: Sequence[Speedup],
    others: Sequence[Sequence[Speedup]] = (),
    baseline: Sequence[float] = (),
) -> Speedup:
    """The confirmation's speedup, with an interval for the mean over all pairs of processes: is it a gain at all?

    The search's figures are those of a winner, and as such more often lucky than not: they do not move the value. How
    far figures of one policy are apart tells how much a speedup differs between processes, whichever policy it is.

    Args:
        confirmed: By the emitted wrapper, in turn with the baseline in fresh processes.
        searched: The search's own figures of the same policy, of all trials in which it took turns.
        others: The figures of each other policy.
        baseline: The baseline's samples per second, of each time that it was measured. As far as these differ, ratios
            are expected to: what slows both down is no part of that, so that repeated ratios correct it.
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
        # Stalls make its turns differ as much within one pair of processes, where they are counted already.
        between = statistics.variance(math.log(rate) for rate in baseline) - own[0].standard_error ** 2
        expected = max(expected, between)
    squares, freedom = _PAIRS * expected, _PAIRS
    for figures in (own, *others):
        logs = [math.log(one.value) for one in figures]
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
