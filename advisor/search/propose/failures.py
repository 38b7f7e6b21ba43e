"""Learn which settings make combinations fail, from those that failed and those that did not.

A combination that crashes, is refused or trains wrongly does so because of one of its settings, or of two that do not
work together. Every setting and every pair in it is a suspect until some combination with it succeeds. Each failure has
one cause, which may be none of these: suspects share the suspicion, and those in many failures get more of it.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt

from advisor.search.space.factors import Factors, Floats, Levels

__all__ = ["Failures"]

_ONLY_THIS_ONE = 1.0
"""Weight of a failure for a reason of its own."""

_ALONE = 1.0
"""Weight of a setting that was in one failure."""

_TOGETHER = 0.5
"""Weight of a pair of settings that was in one failure: there are many pairs, and few of them are bad."""

_EACH_FURTHER = 4.0
"""Factor on the weight of a suspect for each further failure that it was in."""

Cause = frozenset[tuple[int, int]]
"""One setting or two: the column and the level of each."""


class Failures:
    """The suspects after some trials.

    Args:
        factors: The factors of the space.
        failed: Combinations that failed for a reason other than lack of memory, one row of levels each.
        went_well: Combinations that did not fail.
    """

    def __init__(self, factors: Factors, failed: Levels, went_well: Levels) -> None:
        self._factors = factors
        # The last column is the share of the largest batch, which makes nothing crash.
        causes = [_causes(row) for row in np.unique(failed[:, :-1], axis=0)]
        cleared = {cause for cause in set(itertools.chain.from_iterable(causes)) if _holding(went_well, cause).any()}
        self._suspects = [[cause for cause in some if cause not in cleared] for some in causes]
        counts = Counter(itertools.chain.from_iterable(self._suspects))
        self._weights = {
            cause: (_ALONE if len(cause) == 1 else _TOGETHER) * _EACH_FURTHER ** (count - 1)
            for cause, count in counts.items()
        }

    def probability(self, levels: Levels) -> Floats:
        """Probability that combinations fail, one row each.

        It is the largest probability, over all failures, that the failure's cause is in the combination.
        """
        blames = {cause: weight * _holding(levels, cause) for cause, weight in self._weights.items()}
        likely = np.zeros(len(levels))
        for suspects in self._suspects:
            whole = _ONLY_THIS_ONE + sum(self._weights[cause] for cause in suspects)
            likely = np.maximum(likely, sum((blames[cause] for cause in suspects), np.zeros(len(levels))) / whole)
        return likely

    @property
    def pairs(self) -> dict[tuple[str, str], int]:
        """Pairs of settings that fail together -> number of combinations.

        A pair must be in two or more failures and in no success. Pairs are left out if a single setting without a
        success, or a pair in more failures, explains the same failures.
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


def _causes(row: Levels) -> list[Cause]:
    """Possible causes of a combination's failure, excluding plain training and the fewest devices."""
    settings = [(int(column), int(row[column])) for column in np.flatnonzero(row)]
    return [frozenset(some) for size in (1, 2) for some in itertools.combinations(settings, size)]


def _holding(levels: Levels, cause: Cause) -> npt.NDArray[np.bool_]:
    """Which combinations hold a setting, or both of a pair."""
    holding = np.ones(len(levels), dtype=np.bool_)
    for column, level in cause:
        holding &= levels[:, column] == level
    return holding
