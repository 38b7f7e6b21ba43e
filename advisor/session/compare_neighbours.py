"""Compare each new leader with the combinations that differ from it in one method.

The effect of a method on its own says little about its effect among seven others. Two trainings that alternate in the
same processes share the noise, and a comparison takes a fraction of a trial's time: so the search's model learns how
pairs of methods interact without a trial of each. Only what may well be faster than the leader is compared with it, and
after each trial a few combinations with pairs of settings about which little is known: they may pay only together. On
one device this begins once a dozen combinations were compared.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from advisor.decide.candidate import Candidate
from advisor.methods.compose import starts_slowly
from advisor.methods.setting import MethodSetting
from advisor.search.propose.proposal import InTurn
from advisor.search.sizing.batching import Batch
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Proposer
from advisor.session.context import StudyContext
from advisor.session.trials.candidates import CandidateMaker
from advisor.session.trials.pairs import Pairs, best_of_each
from advisor.session.trials.trials import Trials
from advisor.text.units import format_count

__all__ = ["Neighbours"]

_FROM = 6
"""Trials before the first comparison: until then recipes lead."""

_MOST = 100
"""Most comparisons."""

_SHARE = 0.5
"""Time of all comparisons over that of all trials, at most."""

_WORTH_IT = 0.5
"""Time of a comparison over that of a trial, above which a trial says more."""

_HOPE = 1.0
"""Standard deviations by which a combination may be better than the search's model expects. More of them would compare
what hardly ever leads, and the trials that this takes the time of say more."""

_EXPLORERS = 10
"""Most combinations that are compared with the leader after a trial because of what they may teach."""

_LEAST_VALUE = 0.001
"""Least expected decrease of the cost that is worth it: a trial hardly pays below half a percent, and a comparison
takes about a fifth of its time."""

_MORE_FAILURES = 2
"""Failed comparisons of that kind, beyond those that succeeded, after which no more are made: most often one of many
methods sets something for the whole process."""

_FEWEST_TIMED = 2
"""Comparisons before that is judged: the first one may compile kernels."""


class Neighbours:
    """The comparisons of a search.

    Args:
        context: The study.
        trials: Knows the memory of what was timed.
        proposer: Learns the ratios.
        clock: Seconds.
    """

    def __init__(
        self, context: StudyContext, trials: Trials, proposer: Proposer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context = context
        self._trials = trials
        self._proposer = proposer
        self._clock = clock
        self._pairs = Pairs(context, trials)
        self._make = CandidateMaker(trials, context.goal, context.facts, context.hardware)
        self._known: set[str] | None = None
        self._seconds: dict[bool, list[float]] = {False: [], True: []}  # by whether the leader compiles
        self._learned = self._explored = self._failed = 0
        self._refused: set[tuple[str, str]] = set()

    @property
    def notes(self) -> list[str]:
        """What was done, for the user."""
        kinds = [
            (self._learned - self._explored, "one method away from a leader took turns with it"),
            (self._explored, "took turns with a leader to learn how methods act together"),
        ]
        return [
            f"{format_count(number, 'combination')} {what}, which guided the search" for number, what in kinds if number
        ]

    def compare(self, measured: int) -> None:
        """Compare the neighbours of the leader that are not known yet, as far as the time for comparisons goes.

        Args:
            measured: Trials with measurements so far.
        """
        if measured < _FROM:
            return
        standings = self._proposer.standings()
        best = {label: one for label, one in best_of_each(self._context).items() if label in standings}
        if not best:
            return
        leader = best[min(best, key=lambda label: standings[label].mean)]
        combination = Combination.of(leader.policy)
        rate = standings[combination.label].score
        known = self._known = self._proposer.compared if self._known is None else self._known
        others = [
            one
            for one in self._context.space.neighbours(combination)
            if one.label not in known and self._trials.model_of(one) is None and not _adds_set_up(combination, one)
        ]
        for other in self._promising(others, combination):
            if not self._has_time(combination):
                return
            known.add(other.label)
            if not self._is_refused(combination, other):
                self._compare(leader, other, rate)
        self._explore(leader, rate, known)

    def _explore(self, leader: Candidate, rate: float, known: set[str]) -> None:
        """Compare a few combinations because of what they may teach."""
        combination = Combination.of(leader.policy)
        if not self._has_time(combination) or self._failed > self._explored + _MORE_FAILURES:
            return
        refused = {method for _, method in self._refused}

        def allowed(other: Combination) -> bool:
            return not (
                other.label in known
                or self._trials.model_of(other) is not None
                or _adds_set_up(combination, other)
                or refused & {one.name for one in _changed(combination, other)}
            )

        for other in self._proposer.explorers(combination, most=_EXPLORERS, least=_LEAST_VALUE, allowed=allowed):
            if not self._has_time(combination):
                return
            known.add(other.label)
            before, tried = self._learned, self._made
            self._compare(leader, other, rate)
            self._explored += self._learned - before
            self._failed += self._made - tried - (self._learned - before)

    def _is_refused(self, leader: Combination, other: Combination) -> bool:
        """Whether one of its methods could not take turns with the leader."""
        return bool(self._refused & {(leader.label, one.name) for one in _changed(leader, other)})

    def _promising(self, others: list[Combination], leader: Combination) -> list[Combination]:
        """Those that may well be faster than the leader, the likeliest first; the rest, when something else leads."""
        standings = self._proposer.standings(others)
        at_best = {label: one.mean - _HOPE * one.deviation for label, one in standings.items()}
        to_beat = standings[leader.label].mean
        able = [one for one in others if at_best[one.label] < to_beat]
        return sorted(able, key=lambda one: at_best[one.label])

    @property
    def _made(self) -> int:
        return sum(map(len, self._seconds.values()))

    def _has_time(self, leader: Combination) -> bool:
        """Whether there is time for a comparison with a leader: one that compiles takes longer in each."""
        budget = self._context.budget
        trials = budget.durations.trial_seconds
        if self._made >= _MOST or not budget.may_start_trial or not trials:
            return False
        alike = self._seconds[starts_slowly(leader.settings)]
        expected = statistics.median(alike) if alike else _WORTH_IT * statistics.median(trials)
        if len(alike) >= _FEWEST_TIMED and expected > _WORTH_IT * statistics.median(trials):
            return False
        return sum(map(sum, self._seconds.values())) + expected <= _SHARE * sum(trials)

    def _compare(self, leader: Candidate, other: Combination, rate: float) -> None:
        combination = Combination.of(leader.policy)
        batch = Batch(leader.policy.micro_batch, leader.policy.accumulation_steps)
        policy, at_most = self._make.policy(other, batch), self._memory_at_most(combination, other)
        if at_most is None or self._make.refusal(policy) is not None:
            return
        pair = self._pairs.room(leader.policy, policy, at_most=at_most)
        if pair is None:
            return
        changed = _changed(combination, other)
        words = " and ".join(one.words for one in changed)
        self._context.progress.stage(f"comparing the leader in turn with what differs from it in {words}")
        begin = self._clock()
        found = self._pairs.compare(pair, roughly=True)
        self._seconds[starts_slowly(combination.settings)].append(self._clock() - begin)
        if found is None:
            # Most often it sets something for the whole process, as any other setting of this method would.
            if len({one.name for one in changed}) == 1:
                self._refused.add((combination.label, changed[0].name))
            return
        ratio, noise = math.exp(-found[0]), found[1]
        self._proposer.learn(
            other,
            rate * ratio,
            {"micro_batch": pair.other.micro_batch},
            noise=noise,
            beside=InTurn(combination=combination, micro_batch=pair.one.micro_batch, ratio=ratio),
        )
        self._learned += 1

    def _memory_at_most(self, leader: Combination, other: Combination) -> MemoryModel | None:
        """What a combination that was never run needs at most: as the leader with a method more, or as without any.

        A pair that does not fit after all costs a comparison and teaches nothing.
        """
        if all(one in other.settings for one in leader.settings):
            return self._trials.model_of(leader)
        plainest = self._context.space.on_devices((), leader.gpu_count, leader.mesh)
        return None if plainest is None else self._trials.model_of(plainest)


def _adds_set_up(leader: Combination, other: Combination) -> bool:
    """Whether a combination compiles where the leader does not: that takes as long as in a trial, which says more."""
    return starts_slowly([one for one in other.settings if one not in leader.settings])


def _changed(one: Combination, other: Combination) -> list[MethodSetting]:
    """The settings that only one of two combinations has."""
    return [
        setting
        for own, others in ((one, other), (other, one))
        for setting in own.settings
        if setting not in others.settings
    ]
