"""Which settings make a combination fail, learned from the combinations that failed and those that did not.

A combination that crashes, is refused or trains wrongly does so because of one of its settings, or of two that do not
go together. Every setting and every pair that it holds is a suspect until some combination with it went well. A failure
is blamed on its suspects in equal parts, and on the smallest: while a setting alone is a suspect, its pairs are not
needed to explain anything.
"""

from __future__ import annotations

import itertools

import numpy as np

from advisor.search.factors import Factors, Floats, Levels

__all__ = ["Failures"]

_ONLY_THIS_ONE = 1.0
"""Weight of the suspicion that a combination failed for a reason that no other shares; each suspect weighs as much."""

_MOST_CERTAIN = 0.97
"""Suspicion is never proof: what is left untried in the end is tried all the same."""

Cause = frozenset[tuple[int, int]]
"""One setting or two: the column and the level of each."""


class Failures:
    """What is suspected after some trials.

    Args:
        factors: The factors of the space.
        failed: Combinations that failed for a reason that is not a lack of memory, one row of levels each.
        went_well: Combinations that did not.
    """

    def __init__(self, factors: Factors, failed: Levels, went_well: Levels) -> None:
        self._factors = factors
        cleared = {cause for row in _without_fraction(went_well) for cause in _causes(row)}
        self._suspects: list[list[Cause]] = []
        for row in np.unique(_without_fraction(failed), axis=0):
            suspects = [cause for cause in _causes(row) if cause not in cleared]
            alone = [cause for cause in suspects if len(cause) == 1]
            self._suspects.append(
                alone + [cause for cause in suspects if len(cause) == 2 and not any(one <= cause for one in alone)]
            )

    def probability(self, levels: Levels) -> Floats:
        """How likely combinations are to fail, one row each: the share of each failure's suspects that they hold."""
        goes_well = np.ones(len(levels))
        for suspects in self._suspects:
            blamed = np.zeros(len(levels))
            for cause in suspects:
                blamed += np.all([levels[:, column] == level for column, level in cause], axis=0)
            goes_well *= 1 - blamed / (len(suspects) + _ONLY_THIS_ONE)
        return np.minimum(_MOST_CERTAIN, 1 - goes_well)

    @property
    def pairs(self) -> dict[tuple[str, str], int]:
        """Pairs of settings that fail together -> in how many combinations.

        In two failures or more, and never in a success. A setting that was in no success explains the same failures
        alone, and so does a pair that explains more of them: neither leaves a word for the others.
        """
        failures: dict[Cause, set[int]] = {}
        for number, suspects in enumerate(self._suspects):
            for cause in suspects:
                failures.setdefault(cause, set()).add(number)
        found = {}
        for cause, numbers in failures.items():
            if len(cause) == 2 and len(numbers) > 1 and not any(numbers < others for others in failures.values()):
                low, high = sorted(self._factors.name(column, level) for column, level in cause)
                found[low, high] = len(numbers)
        return dict(sorted(found.items()))


def _without_fraction(levels: Levels) -> Levels:
    """A share of the largest batch makes nothing crash."""
    return levels[:, :-1]


def _causes(row: Levels) -> list[Cause]:
    """What a combination's failure could be due to: plain training and the fewest devices are no suspects."""
    settings = [(int(column), int(row[column])) for column in np.flatnonzero(row)]
    return [frozenset(some) for size in (1, 2) for some in itertools.combinations(settings, size)]
