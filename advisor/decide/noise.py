"""How much two measurements of the same thing may differ, which a gain must exceed, and what else shows a gain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from advisor.decide.candidate import Candidate
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.search.space.space import Combination

__all__ = [
    "CHANGE_PER_DOUBLING",
    "SMALLEST_NOISE",
    "ShortSteps",
    "noise_between",
    "noise_of",
    "repeat_noise",
    "won_in_short_steps",
]

SMALLEST_NOISE = 0.01
"""Two runs differ by more than the interval of each shows (clocks, placement); 1 % is never called a gain."""

CHANGE_PER_DOUBLING = 0.05
"""How much the log of a speedup usually changes when the batch doubles, before anything is known of it. A faster
optimizer loses about twice that while its step is half of plain training's."""


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


class ShortSteps(NamedTuple):
    """A comparison of two combinations by short alternating steps.

    Attributes:
        speedup: Speedup of the first over the second.
        micro_batch: Micro-batch of both.
    """

    speedup: Speedup
    micro_batch: int


def won_in_short_steps(first: Candidate, second: Candidate, compared: Iterable[Candidate]) -> ShortSteps | None:
    """The short alternating steps that show one's methods to be faster than another's; ``None`` if none do.

    They must be so much faster that the usual change of a speedup from that batch to those of both leaves a gain.

    Args:
        first: The one.
        second: The other.
        compared: Everything that was compared.
    """
    own, others = (Combination.of(one.policy).label for one in (first, second))
    found = []
    for one in compared:
        if one.comparison is None or one.comparison.speedup is None:
            continue
        pair, speedup = (Combination.of(one.policy).label, one.comparison.beside), one.comparison.speedup
        if pair in ((own, others), (others, own)):
            ahead = speedup if pair == (own, others) else speedup.inverse
            found.append(ShortSteps(ahead, one.comparison.micro_batch))
    if not found:
        return None
    surest = min(found, key=lambda one: one.speedup.high / one.speedup.low)
    batches = (one.policy.micro_batch for one in (first, second))
    doublings = max(abs(math.log2(batch / surest.micro_batch)) for batch in batches)
    return surest if math.log(surest.speedup.low) > CHANGE_PER_DOUBLING * doublings else None
