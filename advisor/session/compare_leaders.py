"""Tell the leaders of a search apart before one is recommended, on several devices.

The best of many noisy measurements was lucky, and measuring it again takes a trial. Two trainings that alternate share
the noise, so their ratio takes seconds. The few that may be the best are compared with each other until choosing one of
them is expected to lose almost nothing, as time allows. Then each has the speed that the search's model expects of it,
given its own measurements, all others and these ratios. On one device every leader was timed in turn with another.
"""

from __future__ import annotations

import itertools
import math

import msgspec

from advisor.decide.candidate import Candidate
from advisor.decide.next_pair import next_pair
from advisor.measure.measurement import Measurement
from advisor.search.propose.standing import JointStanding, Standing
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Proposer
from advisor.session.context import StudyContext
from advisor.session.trials.pairs import Pair, Pairs, best_of_each, compares_pairs
from advisor.session.trials.trials import Trials

__all__ = ["compare_leaders"]

_CONTENDERS = 8
"""Most combinations that are compared with each other."""

_MOST = 30
"""Most comparisons: differences that are open by then hardly matter."""

_SURE = 1.96
"""Standard deviations on each side of a 95 % interval."""


def compare_leaders(context: StudyContext, trials: Trials, proposer: Proposer) -> dict[str, Standing]:
    """Compare the leaders, and give each the speed that follows.

    Args:
        context: The study; the leaders' measurements are replaced in its ledger.
        trials: Runs the comparisons.
        proposer: Its model knows the search's measurements.

    Returns:
        Label of each leader -> the estimate after its comparisons, with the standard deviation of its difference to the
        first; empty if none was made.
    """
    if trials.turns.wanted or not compares_pairs(context):
        return {}
    leaders = _leaders(context, proposer)
    if len(leaders) < 2:
        return {}
    return _Leaders(context, Pairs(context, trials), proposer, leaders).run()


class _Leaders:
    """The leaders with their estimates, by number."""

    def __init__(self, context: StudyContext, pairs: Pairs, proposer: Proposer, leaders: list[Candidate]) -> None:
        self._context = context
        self._pairs = pairs
        self._leaders = leaders
        policies = [one.policy for one in leaders]
        self._rooms: dict[tuple[int, int], tuple[int, Pair]] = {}
        for one, other in itertools.combinations(range(len(leaders)), 2):
            pair = pairs.room(policies[one], policies[other])
            if pair is not None:
                self._rooms[one, other] = len(policies), pair
                policies += [pair.one, pair.other]
        self._standing = proposer.joint_standing([(Combination.of(one), one.micro_batch) for one in policies])

    def run(self) -> dict[str, Standing]:
        standing, made = self._standing, 0
        while standing is not None and made < _MOST and self._context.budget.may_repeat:
            chosen = next_pair(standing, range(len(self._leaders)), among=self._rooms)
            if chosen is None:
                break
            place, pair = self._rooms[chosen]
            labels = [Combination.of(one).words for one in (pair.one, pair.other)]
            self._context.progress.stage(f"comparing leaders in turn: {labels[0]} with {labels[1]}")
            found = self._pairs.compare(pair)
            if found is None:
                del self._rooms[chosen]
                continue
            standing, made = standing.after({place: 1.0, place + 1: -1.0}, -found[0], found[1]), made + 1
        return {} if standing is None or not made else self._settled(standing)

    def _settled(self, standing: JointStanding) -> dict[str, Standing]:
        """Write the estimates into the ledger; other batches of a leader's methods change by the same factor."""
        found, factors, behind = {}, {}, {}
        first = min(range(len(self._leaders)), key=lambda number: standing.mean[number])
        for number, leader in enumerate(self._leaders):
            label, own = Combination.of(leader.policy).label, standing.of(number)
            factors[label] = own.score / leader.samples_per_second, own.deviation
            # What is left to tell apart: the uncertainty that all leaders share decides nothing.
            apart = 0.0 if number == first else standing.behind(number, first)[1]
            found[label] = Standing(mean=own.mean, deviation=apart)
            behind[leader.policy.key] = math.expm1(_SURE * apart)

        def estimated(one: Candidate) -> Candidate:
            label = Combination.of(one.policy).label
            if one.measurement is None or label not in factors:
                return one
            own = _at_speed(one.measurement, *factors[label])
            return msgspec.structs.replace(one, measurement=own, lead_spread=behind.get(one.policy.key))

        self._context.ledger.replace(estimated)
        return found


def _leaders(context: StudyContext, proposer: Proposer) -> list[Candidate]:
    """The best candidate of each combination that may win, best estimate first."""
    best = best_of_each(context)
    standings = {label: one for label, one in proposer.standings().items() if label in best}
    return [best[label] for label in sorted(standings, key=lambda label: standings[label].mean)[:_CONTENDERS]]


def _at_speed(measurement: Measurement, factor: float, deviation: float) -> Measurement:
    """A measurement with another speed, whose uncertainty is the estimate's."""
    seconds, tokens = measurement.step_seconds / factor, measurement.tokens_per_second
    return msgspec.structs.replace(
        measurement,
        step_seconds=seconds,
        step_seconds_low=seconds * math.exp(-_SURE * deviation),
        step_seconds_high=seconds * math.exp(_SURE * deviation),
        samples_per_second=measurement.samples_per_second * factor,
        tokens_per_second=None if tokens is None else tokens * factor,
    )
