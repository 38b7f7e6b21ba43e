"""What the answer promises: how many times as fast as the baseline, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.measure.in_turn import Speedup, student_t_95

__all__ = ["promised"]

_BETWEEN_PROCESSES = 0.02
"""Standard deviation of a speedup from one pair of processes to the next before anything is known (where their memory
comes to lie changes a training's time), which counts as much as so many pairs."""
_PAIRS = 4


def promised(confirmed: Speedup, searched: Sequence[Speedup], others: Sequence[Sequence[Speedup]] = ()) -> Speedup:
    """What the confirmation found, with an interval that another fresh process stays within.

    The search's figures are those of a winner, and as such more often lucky than not: they do not move the value. How
    far figures of one policy are apart tells how much a speedup differs between processes, whichever policy it is.

    Args:
        confirmed: By the emitted wrapper, in turn with the baseline in fresh processes.
        searched: The search's own figures of the same policy, of all trials in which it took turns.
        others: The figures of each other policy.
    """
    squares, freedom = _PAIRS * _BETWEEN_PROCESSES**2, _PAIRS
    for figures in ((confirmed, *searched), *others):
        logs = [math.log(one.value) for one in figures]
        middle = sum(logs) / len(logs)
        squares += sum((one - middle) ** 2 for one in logs)
        freedom += len(logs) - 1
    # The confirmation's pair of processes is as far from the mean of all pairs as the next one is.
    half = student_t_95(freedom) * math.hypot(math.sqrt(2 * squares / freedom), confirmed.standard_error)
    return Speedup(
        value=confirmed.value,
        low=confirmed.value * math.exp(-half),
        high=confirmed.value * math.exp(half),
        rounds=confirmed.rounds,
    )
