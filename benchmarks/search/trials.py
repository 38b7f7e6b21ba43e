"""The one budget that every strategy spends: trials are counted, and what the best so far is truly worth is kept."""

from __future__ import annotations

import random

from advisor.search.resolved import Combination
from advisor.trial.outcome import Outcome
from benchmarks.search.problem import Problem, Trial

__all__ = ["SpentError", "Trials"]


class SpentError(Exception):
    """No trial is left."""


class Trials:
    """Runs trials of one problem for one strategy.

    Args:
        problem: What is searched.
        budget: Most trials.
        seed: Seed of the noise.

    Attributes:
        shares: After every trial: the true rate of what measured best so far, as a share of the exhaustive best (0
            before anything ran).
        out_of_memory: Trials that ran out of memory.
        failed: Trials that ended otherwise than well or out of memory.
    """

    def __init__(self, problem: Problem, budget: int, seed: int) -> None:
        self.problem = problem
        self.shares: list[float] = []
        self.out_of_memory = 0
        self.failed = 0
        self._budget = budget
        self._random = random.Random(seed)
        self._best_measured = 0.0
        self._best_share = 0.0

    @property
    def spent(self) -> int:
        """Trials that were run."""
        return len(self.shares)

    def run(self, combination: Combination, batch: int, *, also: int | None = None) -> list[Trial]:
        """One trial.

        Args:
            combination: The methods and the number of devices.
            batch: Samples per step of each device.
            also: A second batch that is timed in the same process once the first went well: it is part of the trial.

        Returns:
            One result for each batch that was run.

        Raises:
            SpentError: The budget is used up; nothing was run.
        """
        if self.spent >= self._budget:
            raise SpentError
        results = [self.problem.run(combination, batch, self._random)]
        if also is not None and results[0].outcome is Outcome.OK:
            results.append(self.problem.run(combination, also, self._random))
        for result in results:
            self._learn(result)
        self.shares.append(self._best_share)
        return results

    def reached(self, share: float) -> int | None:
        """Trials until the best so far was truly worth this share of the exhaustive best; ``None`` if it never was."""
        return next((number for number, worth in enumerate(self.shares, 1) if worth >= share), None)

    def _learn(self, result: Trial) -> None:
        if result.outcome is Outcome.OUT_OF_MEMORY:
            self.out_of_memory += 1
        elif result.rate is None:
            self.failed += 1
        elif result.rate > self._best_measured:
            self._best_measured = result.rate
            self._best_share = self.problem.rate(result.combination, result.batch) / self.problem.best_rate
