"""Combinations to learn from, not to win with: those that hold pairs of settings about which nothing is known.

Two settings that each cost time and pay only together are never proposed, since each of them makes any combination look
worse. There are too many pairs to try them one by one, but a combination of eight settings holds 28. So a pair is worth
what it may bring the leader if it has a large interaction, times the probability of one; a combination is worth the sum
over its pairs, as one measurement tells whether any of them has one (group testing: Dorfman, The detection of defective
members of large populations, 1943). Where two trainings fit into memory a short comparison with the leader tells that
(:func:`explorers`), otherwise only a trial (:func:`worth_of_learning`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np

from advisor.search.propose.expectation import Expectations, improvement
from advisor.search.propose.sparse_effects import DEVIATION
from advisor.search.space.factors import Choice, Factors, Floats, Levels
from advisor.search.space.space import Combination, ResolvedSpace

__all__ = ["explorers", "worth_of_learning"]

_DRAWS = 400
"""Combinations to choose from."""

_MOST_CHANGES = 8
"""Most methods in which they differ from the leader."""


def explorers(
    space: ResolvedSpace,
    factors: Factors,
    expectations: Expectations,
    leader: Combination,
    generator: random.Random,
    *,
    most: int,
    least: float,
    allowed: Callable[[Combination], bool],
) -> list[Combination]:
    """Combinations whose measurement may lead to something faster than the leader, the most valuable first.

    Args:
        space: The space.
        factors: Its factors.
        expectations: What is known.
        leader: The combination that they will be compared with, on as many devices.
        generator: Random number generator.
        most: Most combinations.
        least: Expected decrease of the cost above which a comparison is worth it.
        allowed: Whether a combination may be chosen.
    """
    value = _value_of_pairs(factors, expectations, factors.levels([Choice(leader, space.batch_fractions[0])])[0])
    drawn = {one.label: one for one in _drawn(space, leader, generator)}
    drawn.pop(leader.label, None)
    candidates = [one for one in drawn.values() if allowed(one)]
    if not candidates:
        return []
    levels = factors.levels(Choice(one, space.batch_fractions[0]) for one in candidates)
    success = expectations.success(levels)
    rows, one, other = factors.pairs_of(levels)
    found: list[Combination] = []
    while len(found) < most:
        worth = success * np.bincount(rows, value[one, other], minlength=len(candidates))
        best = int(np.argmax(worth))
        if worth[best] <= least:
            break
        found.append(candidates[best])
        value[one[rows == best], other[rows == best]] = 0.0
    return found


def worth_of_learning(
    factors: Factors, expectations: Expectations, leader: Levels, levels: Levels, under_way: Levels
) -> Floats:
    """What a trial of each point may lead to, by a large interaction that it would reveal.

    Args:
        factors: The factors of the space.
        expectations: What is known.
        leader: The levels of the leader.
        levels: The points, one row of levels each.
        under_way: Points whose trials are pending: their pairs will be known.

    Returns:
        The expected relative decrease of the cost below the least so far.
    """
    value = _value_of_pairs(factors, expectations, leader)
    _, one, other = factors.pairs_of(under_way)
    value[one, other] = 0.0
    rows, one, other = factors.pairs_of(levels)
    worth: Floats = np.bincount(rows, value[one, other], minlength=len(levels)) * expectations.success(levels)
    return worth


def _value_of_pairs(factors: Factors, expectations: Expectations, leader: Levels) -> Floats:
    """Of each pair of settings: what it is expected to bring the leader, as far as that is not known already."""
    places = factors.first_number[-1]  # pairs of methods only: devices have an effect of their own on everything
    one, other = np.nonzero(factors.different[:places, :places])
    settings = [(column, level) for column, size in enumerate(factors.sizes) for level in range(1, size + 1)]
    column, level = np.array(settings, dtype=np.intp).reshape(-1, 2).T
    points = np.repeat(leader[None, :], len(one), axis=0)
    for number in (one, other):
        points[np.arange(len(points)), column[number]] = level[number]
    value = np.zeros(factors.different.shape)
    if not len(points):
        return value
    found = expectations.suspected(points)
    own = (found.one == one[found.rows]) & (found.other == other[found.rows])
    rows, chance, mean, deviation = (part[own] for part in (found.rows, found.chance, found.mean, found.deviation))
    estimate = expectations.standing(points)
    gain = improvement(expectations.least - estimate.mean[rows] - mean, np.hypot(estimate.deviation[rows], deviation))
    unknown = (deviation / DEVIATION) ** 2
    value[one[rows], other[rows]] = chance * gain * unknown * expectations.success(points)[rows]
    return value


def _drawn(space: ResolvedSpace, leader: Combination, generator: random.Random) -> Iterator[Combination]:
    """Valid combinations that differ from the leader in one to eight methods."""
    axes = list(space.axes)
    for _ in range(_DRAWS if axes else 0):
        chosen = {one.name: one for one in leader.settings}
        for axis in generator.sample(axes, generator.randint(1, min(_MOST_CHANGES, len(axes)))):
            setting = generator.choice((None, *axis.settings))
            if setting is None:
                chosen.pop(axis.method, None)
            else:
                chosen[axis.method] = setting
        settings = tuple(sorted(chosen.values(), key=lambda setting: setting.name))
        drawn = Combination(settings, leader.gpu_count, leader.mesh)
        if space.accepts(drawn):
            yield drawn
