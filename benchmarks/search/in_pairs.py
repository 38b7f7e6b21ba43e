"""Our strategy with pairs in turn on all devices of the leader: its neighbours while searching, the leaders at the end.

From the sixth trial on, each new leader is compared with the combinations that differ from it in one method. Before an
answer is given, the few that may be the best are compared with each other until the choice is expected to lose almost
nothing: measurements of a pair share the noise, and the model's estimate of all of them together protects from luck.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable

from advisor.decide.next_pair import next_pair
from advisor.decide.repeat import MOST_REPEATED
from advisor.search.propose.proposal import InTurn
from advisor.search.propose.standing import JointStanding, Standing
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Proposer
from benchmarks.search.batches import Batches
from benchmarks.search.grown import grown, reach
from benchmarks.search.pairs import Pairs
from benchmarks.search.problem import Trial
from benchmarks.search.trials import Trials

__all__ = ["InPairs"]

FROM = 6
"""Trials before the first comparison: until then recipes lead."""

MOST = 100
"""Most comparisons of neighbours, including those of single methods."""

MOST_AT_END = 30
"""Most comparisons before an answer."""

HOPE = 1.0
"""Standard deviations by which a neighbour may be better than expected, as in a session."""

EXPLORERS = 10
"""Most combinations that are compared with a leader because of what they may teach, as in a session."""

LEAST_VALUE = 0.001
"""Least expected decrease of the cost that is worth that, as in a session."""

WORTH_A_TRIAL = 0.005
"""Expected loss of a choice, as a share of its throughput, that is worth repeating a trial."""

CONTENDERS = 8
"""Most combinations that are compared with each other before an answer."""

LEAST_SHARE = 0.4
"""Smallest share of its own batch at which a leader is compared; with less room the trial is repeated."""


class InPairs:
    """The comparisons of one search.

    Args:
        trials: The budget, which counts comparisons.
        batches: Forecasts of what fits.
        proposer: Learns from the comparisons.
        pairs: Makes them.
        seed: Seed of the noise of repeated trials.
    """

    def __init__(self, trials: Trials, batches: Batches, proposer: Proposer, pairs: Pairs, seed: int) -> None:
        self._trials = trials
        self._problem = trials.problem
        self._batches = batches
        self._proposer = proposer
        self._pairs = pairs
        self._seed = seed
        self._best: dict[str, Trial] = {}
        self._known: set[str] = set()

    def after(self, results: Iterable[Trial]) -> None:
        """Compare neighbours of the leader, and settle what the answer would be now."""
        self.saw(results)
        self.compare_neighbours()
        standings = self._able()
        if standings:
            self._settle(standings)

    def saw(self, results: Iterable[Trial]) -> None:
        """Remember what was run; the proposer knows of it."""
        for one in results:
            self._known.add(one.combination.label)
            before = self._best.get(one.combination.label)
            if one.rate is not None and (before is None or one.rate > (before.rate or 0.0)):
                self._best[one.combination.label] = one

    def compare_neighbours(self) -> None:
        """Compare the leader with what differs from it in one method."""
        standings = self._able()
        if not standings or self._trials.spent < FROM:
            return
        leader = self._best[min(standings, key=lambda label: standings[label].mean)]
        for other in self._promising(leader.combination):
            if self._trials.comparisons >= MOST:
                return
            self._known.add(other.label)
            self._compare(leader, other, standings[leader.combination.label].score)
        for other in self._proposer.explorers(
            leader.combination, most=EXPLORERS, least=LEAST_VALUE, allowed=lambda one: one.label not in self._known
        ):
            if self._trials.comparisons >= MOST:
                return
            self._known.add(other.label)
            self._compare(leader, other, standings[leader.combination.label].score)

    def _promising(self, leader: Combination) -> list[Combination]:
        """Those that may well be faster than the leader, the likeliest first."""
        others = [one for one in self._problem.space.neighbours(leader) if one.label not in self._known]
        standings = self._proposer.standings(others)
        at_best = {label: one.mean - HOPE * one.deviation for label, one in standings.items()}
        to_beat = standings[leader.label].mean
        able = [one for one in others if at_best[one.label] < to_beat]
        return sorted(able, key=lambda one: at_best[one.label])

    def _able(self) -> dict[str, Standing]:
        return {label: one for label, one in self._proposer.standings().items() if label in self._best}

    def _compare(self, leader: Trial, other: Combination, rate: float) -> None:
        largest = self._batches.largest(other)
        if largest < 1:
            return
        room = self._pairs.room((leader.combination, leader.batch), (other, largest))
        if room is None:
            return
        self._trials.compared()
        ratio = self._pairs.ratio((other, room[1]), (leader.combination, room[0]), 0)
        if ratio is not None:
            self._proposer.learn(
                other,
                rate * ratio,
                {"micro_batch": room[1], "largest_batch": largest, **self._batches.attributes(other)},
                noise=self._pairs.noise,
                beside=InTurn(combination=leader.combination, micro_batch=room[0], ratio=ratio),
            )

    def _settle(self, standings: dict[str, Standing]) -> None:
        """Find the answer, with comparisons or else repetitions that only a search that ends here would make."""
        labels = sorted(standings, key=lambda label: standings[label].mean)[:CONTENDERS]
        leaders = [self._best[label] for label in labels]
        points = [(one.combination, one.batch) for one in leaders]
        reaches = [(one.combination, reach(self._problem, self._batches, one)) for one in leaders]
        rooms: dict[tuple[int, int], tuple[int, int]] = {}
        for one, other in itertools.combinations(range(len(leaders)), 2):
            room = self._pairs.room(points[one], points[other])
            if room is not None and all(
                batch >= LEAST_SHARE * points[who][1] for who, batch in zip((one, other), room, strict=True)
            ):
                rooms[one, other] = len(points), len(points) + 1
                points += [(points[one][0], room[0]), (points[other][0], room[1])]
        standing = self._proposer.joint_standing([*reaches, *points[len(leaders) :]])
        assert standing is not None, "something was measured"
        times: dict[object, int] = {}
        compared = repeated = 0
        contenders = range(len(leaders))
        while compared < MOST_AT_END and (pair := next_pair(standing, contenders, among=rooms)) is not None:
            compared += 1
            number = times[pair] = times.get(pair, 0) + 1
            places = rooms[pair]
            ratio = self._pairs.ratio(points[places[0]], points[places[1]], number)
            if ratio is None:
                del rooms[pair]
                continue
            standing = standing.after({places[0]: 1.0, places[1]: -1.0}, -math.log(ratio), self._pairs.noise)
        while repeated < MOST_REPEATED and (pair := next_pair(standing, contenders, enough=WORTH_A_TRIAL)) is not None:
            repeated += 1
            who = max(pair, key=standing.covariance.diagonal().__getitem__)
            standing = self._repeated(standing, who, reaches[who], times)
        best = min(range(len(leaders)), key=lambda one: standing.mean[one])
        found = grown(self._problem, self._batches, self._proposer, leaders[best], self._seed)
        self._trials.settle(found.answer, repeated=repeated + found.tried, compared=compared)

    def _repeated(
        self, standing: JointStanding, who: int, point: tuple[Combination, int], times: dict[object, int]
    ) -> JointStanding:
        times[who] = times.get(who, 0) + 1
        generator = random.Random(f"again {self._seed} {point[0].label} {times[who]}")
        rate = self._problem.run(*point, generator).rate
        return standing if rate is None else standing.after({who: 1.0}, -math.log(rate), self._problem.noise)
