"""How alike two combinations are, which is what they share of all that is not a sum of main effects.

Two kinds of interaction are told apart. One is particular to a neighbourhood: combinations share the more of it the
fewer settings they differ in (the kernel over categories of Hutter, Xu, Hoos and Leyton-Brown, Algorithm runtime
prediction, 2014, section 4). The other goes with pairs of settings: whatever two methods do to each other, they do in
every combination that uses both, so that combinations share as much of it as they have pairs in common (the second
order of an additive Gaussian process: Duvenaud, Nickisch and Rasmussen, Additive Gaussian processes, 2011, section 2).
Of pairs, a combination of many methods has many: the effects of methods alone say less about it than about one of two.
"""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.search.space.factors import Floats, Levels, differences

__all__ = ["Similarity", "spread"]

_SHARED_OVER = 2.5
"""Settings after which two combinations share 1/e of what is particular to a neighbourhood."""

_OF_A_PAIR = 0.45
"""Standard deviation of what a pair of settings does to each other, relative to that of a neighbourhood."""


class Similarity(msgspec.Struct, frozen=True):
    """Of some combinations with others: one row for each of the first, one column for each of the second.

    Attributes:
        neighbours: Correlation of what is particular to a neighbourhood.
        pairs: Pairs of settings that both use.
    """

    neighbours: Floats
    pairs: Floats

    @classmethod
    def of(cls, some: Levels, others: Levels) -> Similarity:
        """The similarity of combinations, one row of levels each."""
        return cls(np.exp(-differences(some, others) / _SHARED_OVER), _pairs(_in_common(some, others)))

    @property
    def covariance(self) -> Floats:
        """Covariance of all that is not a sum, in units of the variance of a neighbourhood."""
        covariance: Floats = self.neighbours + _OF_A_PAIR**2 * self.pairs
        return covariance


def spread(levels: Levels) -> Floats:
    """Variance of all that is not a sum, in the same units: the covariance of each combination with itself."""
    variance: Floats = 1 + _OF_A_PAIR**2 * _pairs(np.count_nonzero(levels, axis=1).astype(np.float64))
    return variance


def _pairs(settings: Floats) -> Floats:
    pairs: Floats = settings * (settings - 1) / 2
    return pairs


def _in_common(some: Levels, others: Levels) -> Floats:
    """How many settings each of ``some`` has in common with each of ``others``; to be without one is none."""
    count = np.zeros((len(some), len(others)))
    for column in range(some.shape[1]):
        used = some[:, column, None]
        count += (used == others[None, :, column]) & (used > 0)
    return count
