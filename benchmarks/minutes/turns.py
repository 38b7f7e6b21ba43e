"""Two trainings in turn: what their ratio is, and how sure that is.

On a machine whose speed changes from second to second both feel it alike, and neighbouring turns give one ratio each.
The result is the median of these with its 95 % interval by order statistics, which supposes nothing about how they are
distributed. Rounds go on until the interval is narrow or the time is up. Looking again after every round makes a narrow
interval come a little too early now and then, which is why a few rounds are never enough.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

__all__ = ["LEAST_FOR_INTERVAL", "PRECISION", "Beside", "Pacing", "Stepping", "in_turn", "median_with_interval"]

LEAST_FOR_INTERVAL = 6
"""Of fewer figures not even the smallest and the largest have the median between them in 95 % of cases."""

PRECISION = 0.015
"""Half the width of an interval, relative to the ratio, that is narrow enough."""

_LEAST_ROUNDS = 3
"""However slow steps are."""

_CONFIDENCE = 0.95


class Stepping(Protocol):
    """A training that makes steps when it is told to."""

    @property
    def batch(self) -> int:
        """Samples per step."""

    @property
    def step_seconds(self) -> float:
        """About what a step takes."""

    def turn(self, steps: int) -> float:
        """Make steps; the seconds that they took."""


class Pacing(msgspec.Struct, frozen=True, kw_only=True):
    """How long two take turns.

    Attributes:
        turn_seconds: What a turn takes at least; if one step of either takes longer, that.
        least_rounds: So many, unless the seconds are over and three were made.
        most_rounds: No more.
        seconds: After them no round begins.
        precision: Half the width of the interval, relative to the ratio, that ends it.
    """

    turn_seconds: float = 0.4
    least_rounds: int = 8
    most_rounds: int = 60
    seconds: float = 60.0
    precision: float = PRECISION


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One training beside another.

    Attributes:
        ratio: Samples per second of the one over those of the other.
        low: Lower end of its 95 % interval; of fewer than six rounds, the smallest ratio.
        high: Upper end; of fewer than six rounds, the largest.
        rounds: How many ratios there are.
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


def in_turn(one: Stepping, other: Stepping, pacing: Pacing, *, clock: Callable[[], float] = time.monotonic) -> Beside:
    """Let two trainings take turns until their ratio is known.

    Args:
        one: The training that is asked about.
        other: What it is held against.
        pacing: How long.
        clock: Seconds that only grow.
    """
    part = max(pacing.turn_seconds, one.step_seconds, other.step_seconds)
    rates: list[float] = []
    others: list[float] = []
    begin = clock()
    while True:
        # Who comes first changes, so that nothing is always the second.
        for stepping, into in ((one, rates), (other, others))[:: -1 if len(rates) % 2 else 1]:
            steps = max(1, round(part / stepping.step_seconds))
            into.append(stepping.batch * steps / stepping.turn(steps))
        found = _beside(rates, others)
        narrow = len(rates) >= pacing.least_rounds and found.precision <= pacing.precision
        over = len(rates) >= _LEAST_ROUNDS and clock() - begin >= pacing.seconds
        if narrow or over or len(rates) >= pacing.most_rounds:
            return found


def _beside(rates: Sequence[float], others: Sequence[float]) -> Beside:
    ratio, low, high = median_with_interval([own / their for own, their in zip(rates, others, strict=True)])
    return Beside(
        ratio=ratio,
        low=low,
        high=high,
        rounds=len(rates),
        samples_per_second=statistics.median(rates),
        other_samples_per_second=statistics.median(others),
    )


def median_with_interval(figures: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the ends of its 95 % interval: of fewer than six figures the smallest and the largest.

    The k-th smallest and the k-th largest have the median between them unless fewer than k of the figures lie on one
    side of it, which is a matter of tossing coins.
    """
    ordered, count = sorted(figures), len(figures)
    skipped, outside = 0, 2 / 2**count
    while skipped + 1 < count / 2 and outside + 2 * math.comb(count, skipped + 1) / 2**count <= 1 - _CONFIDENCE:
        skipped += 1
        outside += 2 * math.comb(count, skipped) / 2**count
    return statistics.median(ordered), ordered[skipped], ordered[count - 1 - skipped]
