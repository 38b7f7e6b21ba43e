"""Short comparisons with the leader: the effect of one more, one fewer or another setting on the best so far.

The effect of a method on its own says little about its effect among seven others. So each new leader is compared with
all combinations that differ from it in one method: on one device, without distributed methods, in turn and at a batch
at which both trainings fit. This teaches the model how pairs of settings interact, without a trial. A comparison is as
noisy here as a trial; it takes about a fifth of a trial's time and is counted separately.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from advisor.search.sizing.batching import choose_batch
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.search.study.sampler import Proposer
from benchmarks.search.batches import Batches
from benchmarks.search.problem import Trial
from benchmarks.search.trials import Trials

__all__ = ["BesideLeader"]

_FROM = 6
"""Trials before the first comparison: until then recipes lead."""

_MOST = 60
"""Most comparisons, including those of single methods: the time of a dozen trials."""


class BesideLeader:
    """The comparisons so far, and with which leader.

    Args:
        trials: The budget, which counts comparisons.
        batches: Forecasts of what fits.
        proposer: Learns from the comparisons.
        seed: Seed of the noise.
    """

    def __init__(self, trials: Trials, batches: Batches, proposer: Proposer, seed: int) -> None:
        self._trials = trials
        self._problem = trials.problem
        self._batches = batches
        self._proposer = proposer
        self._random = random.Random(f"beside the leader {seed}")
        self._best: dict[str, Trial] = {}
        self._known: set[str] = set()
        self._leader_rates: dict[tuple[str, int], float] = {}

    def after(self, results: Iterable[Trial]) -> None:
        """Compare neighbours of the leader, after a trial that the proposer has been told about."""
        for one in results:
            if one.rate is not None:
                known = self._best.get(one.combination.label)
                if known is None or one.rate > (known.rate or 0.0):
                    self._best[one.combination.label] = one
                self._known.add(_on_one(self._problem.space, one.combination).label)
        standings = self._proposer.standings()
        able = [label for label in standings if label in self._best]
        if self._trials.spent < _FROM or not able:
            return
        leader = self._best[min(able, key=lambda label: standings[label].mean)]
        own = _on_one(self._problem.space, leader.combination)
        for other in self._problem.space.neighbours(own):
            if self._trials.comparisons >= _MOST:
                return
            if other.label not in self._known:
                self._known.add(other.label)
                self._compare(own, other, leader.batch)

    def _compare(self, leader: Combination, other: Combination, most: int) -> None:
        """The result of both in turn; nothing if memory does not hold both or one of them fails."""
        batch = self._room(leader, other, most)
        if batch < 1:
            return
        self._trials.compared()
        rate, others = (self._problem.rate(one, batch) for one in (leader, other))
        if min(rate, others) <= 0:
            return
        if (leader.label, batch) not in self._leader_rates:
            self._leader_rates[leader.label, batch] = rate * self._noise()
            self._learn(leader, batch, self._leader_rates[leader.label, batch])
        self._learn(other, batch, self._leader_rates[leader.label, batch] * others / rate * self._noise())

    def _room(self, one: Combination, other: Combination, most: int) -> int:
        """The largest batch at which both are expected to fit together; 0 if there is none."""
        least = min(most, self._batches.largest(one), self._batches.largest(other))
        if least < 1:
            return 0
        limit = self._problem.limit_bytes
        fits = (n for n in range(least, 0, -1) if self._batches.peak(one, n) + self._batches.peak(other, n) <= limit)
        batch = choose_batch(largest=next(fits, 0), fraction=1.0)
        return 0 if batch is None else batch.micro_batch

    def _learn(self, combination: Combination, batch: int, rate: float) -> None:
        attributes = {"micro_batch": batch, "largest_batch": self._batches.largest(combination)}
        self._proposer.learn(combination, rate, attributes, noise=self._problem.noise)

    def _noise(self) -> float:
        return math.exp(self._random.gauss(0.0, self._problem.noise))


def _on_one(space: ResolvedSpace, combination: Combination) -> Combination:
    """The same methods on one device."""
    distributes = {axis.method for axis in space.axes if axis.divides}
    return Combination(
        tuple(setting for setting in combination.settings if setting.name not in distributes), space.gpu_counts[0]
    )
