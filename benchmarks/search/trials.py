"""The budget that strategies spend: it counts trials and keeps the true value of their answers.

The answer after each trial is the one a session would give if it ended there. With a model, combinations that it
considers lucky or uncertain are measured again until the expected loss of the choice is at most half a percent. Without
one, the leaders are measured once more and the worse of two values counts, until the leader was measured twice:
otherwise the best of many noisy values would be the luckiest. If two are still close, the median of three counts. These
repetitions are counted as trials.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import msgspec

from advisor.decide.repeat import MOST_REPEATED, contested, typical_value, worth_repeating
from advisor.measure.timing import NEAR
from advisor.search.propose.standing import Standing
from advisor.search.space.space import Combination
from advisor.session.answer.remeasure import MOST, ROUNDS
from advisor.trial.outcome import Outcome
from benchmarks.search.problem import Problem, Trial
from benchmarks.search.results import COMPARISON

__all__ = ["SpentError", "Trials"]


class SpentError(Exception):
    """No trial is left."""


_Key = tuple[str, int, int]


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a strategy that would end.

    Attributes:
        answer: The answer.
        repeated: Trials that it would repeat before.
        compared: Comparisons in all, including those that it would make before.
    """

    answer: Trial
    repeated: int
    compared: int


class Trials:
    """Runs trials of one problem for one strategy.

    Args:
        problem: The problem.
        budget: Most trials, of which a comparison is a fifth.
        seed: Seed of the noise.

    Attributes:
        out_of_memory: Number of trials that ran out of memory.
        failed: Number of trials that failed otherwise.
        comparisons: Number of short comparisons, which are counted separately.
    """

    def __init__(self, problem: Problem, budget: int, seed: int) -> None:
        self.problem = problem
        self.out_of_memory = 0
        self.failed = 0
        self.comparisons = 0
        self._budget = budget
        self._seed = seed
        self._random = random.Random(seed)
        self._first: dict[_Key, Trial] = {}
        self._known: list[int] = []
        self._compared: list[int] = []
        self._settlements: dict[int, Settlement] = {}
        self._again: dict[tuple[_Key, int], float] = {}

    @property
    def spent(self) -> int:
        """Number of trials that were run."""
        return len(self._known)

    @property
    def _is_spent(self) -> bool:
        return self.spent + COMPARISON * self.comparisons >= self._budget

    def run(self, combination: Combination, batch: int, *, also: int | None = None) -> list[Trial]:
        """Run one trial.

        Args:
            combination: The methods and the number of devices.
            batch: Samples per step of each device.
            also: A second batch to time in the same process if the first succeeds, as part of the trial.

        Returns:
            One result for each batch that was run.

        Raises:
            SpentError: The budget is used up; nothing was run.
        """
        if self._is_spent:
            raise SpentError
        results = [self.problem.run(combination, batch, self._random)]
        if also is not None and results[0].outcome is Outcome.OK:
            results.append(self.problem.run(combination, also, self._random))
        for result in results:
            self._learn(result)
        self._known.append(len(self._first))
        self._compared.append(self.comparisons)
        return results

    def compared(self) -> None:
        """Count a comparison.

        Raises:
            SpentError: The budget is used up.
        """
        if self._is_spent:
            raise SpentError
        self.comparisons += 1

    def settle(self, answer: Trial, *, repeated: int, compared: int) -> None:
        """State the answer that a strategy would give now, instead of one that is found by repeating trials.

        Args:
            answer: The answer.
            repeated: Trials that it would repeat before.
            compared: Comparisons that it would make before, beyond those counted so far.
        """
        self._settlements[self.spent] = Settlement(
            answer=answer, repeated=repeated, compared=self.comparisons + compared
        )

    def answers(self) -> Iterator[tuple[float, int]]:
        """After each trial: the true value of the answer, and how many repetitions it needs.

        The value is a fraction of the exhaustive optimum, 0 before anything ran.
        """
        settled: Settlement | None = None
        for number, known in enumerate(self._known, start=1):
            settled = self._settlements.get(number, settled)
            if settled is not None:
                yield self._worth(settled.answer), settled.repeated
                continue
            answer, repeated = self._measured_best(known)
            yield (0.0 if answer is None else self._worth(answer)), repeated

    def reached(self, share: float) -> int | None:
        """Trials, including repetitions, until the answer reached this fraction of the exhaustive optimum.

        ``None`` if it never did.
        """
        for number, (worth, repeated) in enumerate(self.answers(), start=1):
            if worth >= share:
                return number + repeated
        return None

    def compared_until(self, share: float) -> int | None:
        """Comparisons until the answer reached this fraction of the exhaustive optimum; ``None`` if it never did."""
        made = 0
        for number, (worth, _) in enumerate(self.answers(), start=1):
            settled = self._settlements.get(number)
            made = max(made, self._compared[number - 1]) if settled is None else settled.compared
            if worth >= share:
                return made
        return None

    def worth_after(self, number: int) -> float:
        """The true value of the answer after this many trials, not counting repetitions of the leaders."""
        return next(
            (worth for worth, _ in itertools.islice(self.answers(), max(0, min(number, self.spent) - 1), None)), 0.0
        )

    def _learn(self, result: Trial) -> None:
        if result.outcome is Outcome.OUT_OF_MEMORY:
            self.out_of_memory += 1
        elif result.rate is None:
            self.failed += 1
        else:
            self._first.setdefault(_key(result), result)

    def settled(self, thoughts: Mapping[str, Standing]) -> tuple[Trial | None, int]:
        """The best measurement after lucky-looking ones were repeated, and the number of repetitions.

        Args:
            thoughts: The expectations of a strategy's model by label.
        """
        best: dict[str, _Key] = {}
        for key, trial in self._first.items():
            label = trial.combination.label
            if label in thoughts and (label not in best or _rate(trial) > _rate(self._first[best[label]])):
                best[label] = key
        standings = {label: thoughts[label] for label in best}
        figures = {label: [_rate(self._first[key])] for label, key in best.items()}
        repeated = 0
        while repeated < MOST_REPEATED and (again := worth_repeating(standings, figures)) is not None:
            figure = self._measured_again(best[again], len(figures[again]))
            standings[again] = standings[again].after(figure, self.problem.noise)
            figures[again].append(figure)
            repeated += 1
        chosen = max(figures, key=lambda label: typical_value(figures[label]), default=None)
        return (None if chosen is None else self._first[best[chosen]]), repeated

    def _measured_best(self, known: int) -> tuple[Trial | None, int]:
        """The recommendation given the measurements so far, and the number of repetitions it needs."""
        figures: dict[_Key, tuple[float, ...]] = {
            key: (_rate(trial),) for key, trial in itertools.islice(self._first.items(), known)
        }
        repeated = 0
        for _ in range(ROUNDS):
            leaders = self._leaders(figures) or contested(figures)
            if not leaders:
                break
            for key in leaders:
                figures[key] = (*figures[key], self._measured_again(key, len(figures[key])))
            repeated += len(leaders)
        best = max(figures, key=lambda key: typical_value(figures[key]), default=None)
        return (None if best is None else self._first[best]), repeated

    @staticmethod
    def _leaders(figures: dict[_Key, tuple[float, ...]]) -> list[_Key]:
        """The best by the value that counts, as far as they were measured once."""
        order = sorted(figures, key=lambda key: -typical_value(figures[key]))
        near = [key for key in order if typical_value(figures[order[0]]) <= (1 + NEAR) * typical_value(figures[key])]
        return [key for key in near[:MOST] if len(figures[key]) == 1]

    def _measured_again(self, key: _Key, before: int) -> float:
        """A further measurement of a policy that has so many: repeated calls give the same value."""
        if (key, before) not in self._again:
            first = self._first[key]
            generator = random.Random(f"{self._seed} {key} {before}")
            rate = self.problem.run(first.combination, first.batch, generator).rate
            assert rate is not None, f"{key} ran before"
            self._again[key, before] = rate
        return self._again[key, before]

    def _worth(self, answer: Trial) -> float:
        return self.problem.rate(answer.combination, answer.batch) / self.problem.best_rate


def _rate(trial: Trial) -> float:
    return trial.rate or 0.0


def _key(trial: Trial) -> _Key:
    return trial.combination.label, trial.combination.gpu_count, trial.batch
