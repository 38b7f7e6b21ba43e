"""What the answer promises: how many times as fast as the baseline, and how sure that is."""

from __future__ import annotations

import math

from advisor.measure.in_turn import Speedup

__all__ = ["promised"]

_BETWEEN_PROCESSES = 0.02
"""Standard deviation of a speedup from one pair of processes to the next before anything is known (where their memory
comes to lie changes a training's time), which counts as much as so many pairs."""
_PAIRS = 2
_NORMAL_95 = 1.96


def promised(confirmed: Speedup, searched: Speedup | None) -> Speedup:
    """What the confirmation found, with an interval that another fresh process stays within.

    The search's figure is that of a winner, and as such more often lucky than not: it does not move the value. How far
    the two are apart tells how much a speedup differs between processes.

    Args:
        confirmed: By the emitted wrapper, in turn with the baseline in fresh processes.
        searched: The search's own figure of the same policy, if it took turns.
    """
    squares, freedom = _PAIRS * _BETWEEN_PROCESSES**2, _PAIRS
    if searched is not None:
        squares, freedom = squares + math.log(confirmed.value / searched.value) ** 2 / 2, freedom + 1
    half = _NORMAL_95 * math.hypot(math.sqrt(squares / freedom), confirmed.standard_error)
    return Speedup(
        value=confirmed.value,
        low=confirmed.value * math.exp(-half),
        high=confirmed.value * math.exp(half),
        rounds=confirmed.rounds,
    )
