"""The similarity of combinations: the covariance of their interactions, beyond main effects.

There are two kinds of interaction. One is local: combinations share more of it the fewer settings they differ in (the
kernel over categories of Hutter, Xu, Hoos and Leyton-Brown, Algorithm runtime prediction, 2014, section 4). The other
belongs to pairs of settings: two methods affect each other in every combination that uses both, so combinations share
it in proportion to their common pairs (the second order of an additive Gaussian process: Duvenaud, Nickisch and
Rasmussen, Additive Gaussian processes, 2011, section 2). A combination of many methods has many pairs, so main effects
say less about it than about one of two methods.
"""

from __future__ import annotations

import numpy as np

from advisor.search.space.factors import Floats, Levels, differences

__all__ = ["shared_pairs", "similarity", "spread"]

_SHARED_OVER = 2.5
"""Number of differing settings at which two combinations share 1/e of the local interaction."""

_OF_A_PAIR = 0.45
"""Standard deviation of a pair's interaction, relative to that of the local one."""


def similarity(some: Levels, others: Levels) -> Floats:
    """Covariance of all interactions, in units of the local variance: a row for each of ``some``.

    Combinations are given by one row of levels each; ``others`` are the columns.
    """
    return np.exp(-differences(some, others) / _SHARED_OVER) + _OF_A_PAIR**2 * shared_pairs(some, others)


def spread(levels: Levels) -> Floats:
    """Variance of all interactions in the same units: the covariance of each combination with itself."""
    variance: Floats = 1 + _OF_A_PAIR**2 * _pairs(np.count_nonzero(levels, axis=1).astype(np.float64))
    return variance


def _pairs(settings: Floats) -> Floats:
    pairs: Floats = settings * (settings - 1) / 2
    return pairs


def shared_pairs(some: Levels, others: Levels) -> Floats:
    """Number of pairs of settings that each of ``some`` shares with each of ``others``, not counting absent methods."""
    count = np.zeros((len(some), len(others)))
    for column in range(some.shape[1]):
        used = some[:, column, None]
        count += (used == others[None, :, column]) & (used > 0)
    return _pairs(count)
