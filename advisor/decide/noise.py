"""How much two measurements of the same thing may differ, which a gain must exceed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement

__all__ = ["SMALLEST_NOISE", "noise_between", "noise_of", "repeat_noise"]

SMALLEST_NOISE = 0.01
"""Two runs differ by more than the interval of each shows (clocks, placement); 1 % is never called a gain."""


def repeat_noise(groups: Iterable[Sequence[Measurement]]) -> float:
    """Relative spread of repeated measurements of the same policy: the widest half-range of any group."""
    widest = 0.0
    for group in groups:
        rates = [measurement.samples_per_second for measurement in group]
        if len(rates) > 1:
            widest = max(widest, (max(rates) - min(rates)) / (max(rates) + min(rates)))
    return widest


def noise_of(measurement: Measurement, speedup: Speedup | None) -> float:
    """Relative standard deviation between repetitions of a measurement, for the search's model.

    Half the width of a 95 % interval is two of them. A single step has no interval: half of it may be chance. For a
    candidate that alternated with a leader only the ratio to it counts, since others share the leader's own error.
    """
    spread = measurement.relative_spread if speedup is None else speedup.own_spread
    return min(0.5, max(SMALLEST_NOISE, spread / 2))


def noise_between(first: Measurement, second: Measurement, repeats: float = 0.0) -> float:
    """Relative difference of two measurements that may be chance.

    The half-widths of two independent 95 % intervals add in squares; :func:`repeat_noise` is a lower bound.
    """
    within = math.hypot(first.relative_spread, second.relative_spread)
    return max(SMALLEST_NOISE, within, repeats)
