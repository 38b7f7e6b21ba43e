"""Compare the speed of two trainings that alternate: interference slows both equally and cancels.

Two consecutive measurements differ by 5 to 20 % on a shared machine or one with a varying clock; the ratio of
alternating steps differs by 1 to 3 %. So a ratio takes seconds where an absolute time takes a minute.

Pure logic: the turns are given, so that every rule is tested without waiting.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from advisor.measure.typical import student_t_95
from advisor.text.records import AboveZero

__all__ = ["Speedup", "TurnPlan", "speedup_of", "take_turns"]

_EXPECTED_ERROR = 0.03
"""Prior standard deviation of one round's log ratio, and its weight in rounds: two rounds that happen to agree prove
nothing yet."""
_EXPECTED_ROUNDS = 2

_NORMAL_95 = 1.96

_WIDEST = 4.0
"""Upper over lower end of an interval above which its middle means nothing."""


class Speedup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Throughput of one training relative to another.

    Attributes:
        value: The median over the rounds.
        low: Lower end of its 95 % confidence interval.
        high: Upper end.
        rounds: Number of rounds.
        least: The smallest ratio of any round; 0 if unknown.
        links: If it is a product, the value of each measured ratio and half its interval's log, the one over the
            common baseline first.
    """

    value: AboveZero
    low: AboveZero
    high: AboveZero
    rounds: int
    least: float = 0.0
    links: tuple[tuple[float, float], ...] = ()

    @property
    def relative_spread(self) -> float:
        """Half the width of the confidence interval, relative to the value."""
        return (self.high - self.low) / (2 * self.value)

    @property
    def is_unsteady(self) -> bool:
        """Whether its ends are so far apart that only the lower one is worth saying."""
        return self.high > _WIDEST * self.low

    @property
    def standard_error(self) -> float:
        """Standard error of the value's log."""
        return math.log(self.high / self.low) / (2 * _NORMAL_95)

    @property
    def inverse(self) -> Speedup:
        """The speedup of the other training over the first."""
        return Speedup(value=1 / self.value, low=1 / self.high, high=1 / self.low, rounds=self.rounds)

    def times(self, further: Speedup) -> Speedup:
        """The product: ``further`` is the speedup of a training over the one that has this speedup."""
        value = self.value * further.value
        above = math.hypot(math.log(self.high / self.value), math.log(further.high / further.value))
        below = math.hypot(math.log(self.value / self.low), math.log(further.value / further.low))
        return Speedup(
            value=value,
            low=value * math.exp(-below),
            high=value * math.exp(above),
            rounds=min(self.rounds, further.rounds),
            links=(*self._all_links, *further._all_links),
        )

    def spread_beside(self, other: Speedup) -> float:
        """Relative half-width of the interval of this speedup over another one over the same baseline.

        Common links cancel: for two that alternated with the same leader, the leader's own speedup over the baseline.
        """
        own, others = list(self._all_links), list(other._all_links)
        if self.links or other.links:
            while own and others and own[0] == others[0]:
                del own[0], others[0]
        return math.expm1(math.hypot(*(half for _, half in (*own, *others))))

    @property
    def own_spread(self) -> float:
        """Relative half-width of the interval of the last ratio alone."""
        return math.expm1(self._all_links[-1][1])

    @property
    def _all_links(self) -> tuple[tuple[float, float], ...]:
        return self.links or ((self.value, math.log(self.high / self.low) / 2),)


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop.

    Attributes:
        min_rounds: Fewest rounds; the first one is always completed.
        max_rounds: Most rounds.
        target_spread: Stop when the interval's half-width is below this share of the speedup.
        target_share: Or below this share of the speedup's absolute log: a clear gain need not be known as exactly.
        seconds: Start no round that would end after this many seconds.
        slower_than: Stop once the upper end of the interval is below this speedup, else ``None``.
    """

    min_rounds: int
    max_rounds: int
    target_spread: float
    seconds: float
    target_share: float = 0.0
    slower_than: float | None = None

    def spread_for(self, speedup: float) -> float:
        """The largest half-width, relative to the speedup, that is certain enough."""
        return max(self.target_spread, self.target_share * abs(math.log(speedup)))


def take_turns(
    own: Callable[[], float], other: Callable[[], float], plan: TurnPlan, clock: Callable[[], float]
) -> Speedup:
    """Alternate until the ratio is certain enough.

    Each turn returns seconds per sample. Every turn of ``own`` is compared with the turns of ``other`` before and after
    it, so that a steady drift cancels.
    """
    before = other()  # it may have to be made ready first
    begin = clock()
    ratios: list[float] = []
    while True:
        round_begin = clock()
        mine, after = own(), other()
        ratios.append(math.sqrt(before * after) / mine)
        before = after
        found = speedup_of(ratios)
        if (
            len(ratios) >= plan.max_rounds
            or clock() - begin + (clock() - round_begin) > plan.seconds
            or (plan.slower_than is not None and found.high < plan.slower_than)
            or (len(ratios) >= plan.min_rounds and found.relative_spread <= plan.spread_for(found.value))
        ):
            return found


def speedup_of(ratios: Sequence[float]) -> Speedup:
    """Estimate the speedup from the ratio of each round.

    The interval is Student's around the median of the logs, with the usual error of a round as the variance's
    conjugate prior (Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.6). Neighbouring rounds share a turn
    of the other training, so that their errors have a correlation of 1/6: the mean of n has 1 + (n - 1) / (3 n) times
    the variance of independent ones.
    """
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.median(logs)
    freedom = _EXPECTED_ROUNDS + len(logs)
    squares = _EXPECTED_ROUNDS * _EXPECTED_ERROR**2 + sum((one - middle) ** 2 for one in logs)
    shared = 1 + (len(logs) - 1) / (3 * len(logs))
    half = student_t_95(freedom) * math.sqrt(shared * squares / (freedom - 1) / len(logs))
    return Speedup(
        value=math.exp(middle),
        low=math.exp(middle - half),
        high=math.exp(middle + half),
        rounds=len(logs),
        least=min(ratios),
    )
