"""Two alternating trainings: their speed ratio, and its confidence interval.

If the speed of the machine changes from second to second, it affects both alike, and each pair of neighbouring turns
gives one ratio. The result is the median of the ratios with a 95 % confidence interval from order statistics, which
assumes nothing about their distribution. Rounds continue until the interval is narrow or the time is up. Checking after
every round occasionally makes an interval look narrow too early, so there is a minimum number of rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

__all__ = ["LEAST_FOR_INTERVAL", "PRECISION", "Pacing", "SpeedRatio", "Stepping", "in_turn", "median_with_interval"]

LEAST_FOR_INTERVAL = 6
"""With fewer values, not even the smallest and the largest enclose the median in 95 % of cases."""

PRECISION = 0.015
"""Half the width of a narrow interval, relative to the ratio."""

_LEAST_ROUNDS = 3
"""Minimum, however slow the steps are."""

_CONFIDENCE = 0.95


class Stepping(Protocol):
    """A training that makes steps on request."""

    @property
    def batch(self) -> int:
        """Samples per step."""

    @property
    def step_seconds(self) -> float:
        """Approximate seconds per step."""

    def turn(self, steps: int) -> float:
        """Make steps and return the seconds they took."""


class Pacing(msgspec.Struct, frozen=True, kw_only=True):
    """How long two trainings alternate.

    Attributes:
        turn_seconds: Shortest turn; at least one step of either.
        least_rounds: Minimum number of rounds, unless the time is up after three.
        most_rounds: Maximum number of rounds.
        seconds: No round begins after this time.
        precision: Half the width of the interval, relative to the ratio, at which to stop.
    """

    turn_seconds: float = 0.4
    least_rounds: int = 8
    most_rounds: int = 60
    seconds: float = 60.0
    precision: float = PRECISION


class SpeedRatio(msgspec.Struct, frozen=True, kw_only=True):
    """One training compared with another.

    Attributes:
        ratio: Samples per second of the one over those of the other.
        low: Lower end of its 95 % confidence interval; with fewer than six rounds, the smallest ratio.
        high: Upper end; with fewer than six rounds, the largest.
        rounds: Number of ratios.
        samples_per_second: Of the one, the median of its turns.
        other_samples_per_second: Of the other.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    samples_per_second: float
    other_samples_per_second: float

    @property
    def precision(self) -> float:
        """Half the width of the interval, relative to the ratio."""
        return (self.high - self.low) / (2 * self.ratio)


def in_turn(
    one: Stepping, other: Stepping, pacing: Pacing, *, clock: Callable[[], float] = time.monotonic
) -> SpeedRatio:
    """Let two trainings alternate until their ratio is known.

    Args:
        one: The training to measure.
        other: The training to compare it with.
        pacing: How long.
        clock: A monotonic clock.
    """
    part = max(pacing.turn_seconds, one.step_seconds, other.step_seconds)
    rates: list[float] = []
    others: list[float] = []
    begin = clock()
    while True:
        # Alternate who comes first, so that neither is always second.
        for stepping, into in ((one, rates), (other, others))[:: -1 if len(rates) % 2 else 1]:
            steps = max(1, round(part / stepping.step_seconds))
            into.append(stepping.batch * steps / stepping.turn(steps))
        found = _speed_ratio(rates, others)
        narrow = len(rates) >= pacing.least_rounds and found.precision <= pacing.precision
        over = len(rates) >= _LEAST_ROUNDS and clock() - begin >= pacing.seconds
        if narrow or over or len(rates) >= pacing.most_rounds:
            return found


def _speed_ratio(rates: Sequence[float], others: Sequence[float]) -> SpeedRatio:
    ratio, low, high = median_with_interval([own / their for own, their in zip(rates, others, strict=True)])
    return SpeedRatio(
        ratio=ratio,
        low=low,
        high=high,
        rounds=len(rates),
        samples_per_second=statistics.median(rates),
        other_samples_per_second=statistics.median(others),
    )


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median with its 95 % confidence interval; with fewer than six values, the smallest and the largest.

    The k-th smallest and the k-th largest value enclose the median unless fewer than k of the values lie on one side of
    it, which follows a binomial distribution (the sign test).
    """
    ordered, count = sorted(values), len(values)
    skipped, outside = 0, 2 / 2**count
    while skipped + 1 < count / 2 and outside + 2 * math.comb(count, skipped + 1) / 2**count <= 1 - _CONFIDENCE:
        skipped += 1
        outside += 2 * math.comb(count, skipped) / 2**count
    return statistics.median(ordered), ordered[skipped], ordered[count - 1 - skipped]
