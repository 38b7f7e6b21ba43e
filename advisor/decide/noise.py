"""How much two measurements of the same thing may differ: what a gain must exceed to be one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement

__all__ = ["SMALLEST_NOISE", "noise_between", "noise_of", "repeat_noise"]

SMALLEST_NOISE = 0.01
"""Two runs differ by more than the interval within each says (clocks, placement); 1 % is never called a gain."""


def repeat_noise(groups: Iterable[Sequence[Measurement]]) -> float:
    """Relative spread of repeated measurements of the same policy: the widest half-range of any group.

    Args:
        groups: Measurements, grouped by policy; groups of one say nothing.
    """
    widest = 0.0
    for group in groups:
        rates = [measurement.samples_per_second for measurement in group]
        if len(rates) > 1:
            widest = max(widest, (max(rates) - min(rates)) / (max(rates) + min(rates)))
    return widest


def noise_of(measurement: Measurement, speedup: Speedup | None) -> float:
    """By what share a figure would differ if it were measured again: a standard deviation, for the search's model.

    Half the width of a 95 % interval is two of them. A figure of one step has no interval: half of it may be chance.
    Of what took turns with a leader only these turns count: what the leader's own ratio is off by, others share.

    Args:
        measurement: The figure.
        speedup: Over the baseline, where it follows from turns.
    """
    spread = measurement.relative_spread if speedup is None else speedup.own_spread
    return min(0.5, max(SMALLEST_NOISE, spread / 2))


def noise_between(first: Measurement, second: Measurement, repeats: float = 0.0) -> float:
    """Relative difference of two measurements that may be chance.

    The half-widths of two independent 95 % intervals add in squares; what repetitions of the same policy showed is
    a floor below that.

    Args:
        first: One measurement.
        second: The other.
        repeats: Result of :func:`repeat_noise`.
    """
    within = math.hypot(first.relative_spread, second.relative_spread)
    return max(SMALLEST_NOISE, within, repeats)
