"""Which settings make a combination fail, learned from the combinations that failed and those that did not.

A combination that crashes, is refused or trains wrongly does so because of one of its settings, or of two that do not
go together. Every setting and every pair that it holds is a suspect until some combination with it went well. Each
failure has one cause, which may be none of these: suspects share the suspicion, and one that is in many failures gets
more of it than one that is in few.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt

from advisor.search.space.factors import Factors, Floats, Levels

__all__ = ["Failures"]

_ONLY_THIS_ONE = 1.0
"""Weight of the suspicion that a combination failed for a reason that no other shares."""

_ALONE = 1.0
"""Weight of a setting that was in one failure."""

_TOGETHER = 0.5
"""Weight of a pair of settings that was in one failure: there are many pairs, and few of them are bad."""

_EACH_FURTHER = 4.0
"""Factor on the weight of a suspect for each further failure that it was in."""

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
        causes = [_causes(row) for row in np.unique(_without_fraction(failed), axis=0)]
        cleared = {cause for cause in set(itertools.chain.from_iterable(causes)) if _holding(went_well, cause).any()}
        self._suspects = [[cause for cause in some if cause not in cleared] for some in causes]
        counts = Counter(itertools.chain.from_iterable(self._suspects))
        self._weights = {
            cause: (_ALONE if len(cause) == 1 else _TOGETHER) * _EACH_FURTHER ** (count - 1)
            for cause, count in counts.items()
        }

    def probability(self, levels: Levels) -> Floats:
        """How likely combinations are to fail, one row each.

        That is how likely the cause of one of the failures is in it: of that which says most about it.
        """
        blames = {cause: weight * _holding(levels, cause) for cause, weight in self._weights.items()}
        likely = np.zeros(len(levels))
        for suspects in self._suspects:
            whole = _ONLY_THIS_ONE + sum(self._weights[cause] for cause in suspects)
            likely = np.maximum(likely, sum((blames[cause] for cause in suspects), np.zeros(len(levels))) / whole)
        return likely

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
            alone = any(frozenset([setting]) in failures for setting in cause)
            explained = alone or any(numbers < others for others in failures.values())
            if len(cause) == 2 and len(numbers) > 1 and not explained:
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


def _holding(levels: Levels, cause: Cause) -> npt.NDArray[np.bool_]:
    """Which combinations hold a setting, or both of a pair."""
    holding = np.ones(len(levels), dtype=np.bool_)
    for column, level in cause:
        holding &= levels[:, column] == level
    return holding
