"""The untried points that a proposal is chosen from: all of them, or a promising subset of a large space."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from advisor.methods.setting import MethodSetting
from advisor.search.space.explored import Explored
from advisor.search.space.factors import Choice, Factors, Levels
from advisor.search.space.space import Axis, Combination, ResolvedSpace

__all__ = ["Pool"]

_DRAWS = 500
"""Combinations drawn at random, so that no part of a large space is unreachable."""

_TWO_CHANGES = 200
"""Most combinations two changes away from each good one; with many methods there are thousands."""


class Pool:
    """Untried points of a space."""

    def __init__(self, space: ResolvedSpace, tried: Explored, factors: Factors) -> None:
        self._space = space
        self._tried = tried
        self._factors = factors
        self._every = None if tried.every_point is None else list(itertools.starmap(Choice, tried.every_point))
        self._keys = [] if self._every is None else [(one.combination.label, one.fraction) for one in self._every]
        self._levels = None if self._every is None else factors.levels(self._every)

    @property
    def is_whole(self) -> bool:
        """Whether it holds every untried point."""
        return self._every is not None

    def points(self, generator: random.Random, good: Sequence[Combination]) -> tuple[list[Choice], Levels]:
        """Untried points with their levels; empty if there are none."""
        if self._every is not None and self._levels is not None:
            left = [number for number, key in enumerate(self._keys) if key not in self._tried]
            return [self._every[number] for number in left], self._levels[np.array(left, dtype=np.intp)]
        drawn = (self._space.draw(generator) for _ in range(_DRAWS))
        points = self._untried(itertools.chain(*(self._near(one, generator) for one in good), drawn))
        if not points:
            last = self._tried.draw(generator)
            points = [] if last is None else [Choice(*last)]
        return points, self._factors.levels(points)

    def beside(self, good: Iterable[Combination]) -> tuple[list[Choice], Levels]:
        """Untried points one change away from good combinations."""
        points = self._untried(itertools.chain(*(self._changed(one) for one in good)))
        return points, self._factors.levels(points)

    def _untried(self, combinations: Iterable[Combination | None]) -> list[Choice]:
        different = {one.label: one for one in combinations if one is not None}
        return [
            Choice(combination, fraction)
            for label, combination in different.items()
            if self._tried.is_valid(combination)
            for fraction in self._space.batch_fractions
            if (label, fraction) not in self._tried
        ]

    def _near(self, combination: Combination, generator: random.Random) -> Iterator[Combination]:
        """A combination, those one change away, and some of those two changes away."""
        once = list(self._changed(combination))
        yield combination
        yield from once
        for _ in range(_TWO_CHANGES if once else 0):
            axis = generator.choice(self._space.axes)
            yield self._with(generator.choice(once), axis, generator.choice((None, *axis.settings)))

    def _changed(self, combination: Combination) -> Iterator[Combination]:
        """Every valid combination with one setting more, less or another, or on other devices."""
        for axis in self._space.axes:
            for setting in (None, *axis.settings):
                changed = self._with(combination, axis, setting)
                if changed != combination and self._tried.is_valid(changed):
                    yield changed
        for gpu_count, mesh in self._space.places:
            moved = self._space.completed(combination.settings, gpu_count, mesh)
            if moved is not None and moved != combination:
                yield moved

    def _with(self, combination: Combination, axis: Axis, setting: MethodSetting | None) -> Combination:
        """A combination with another setting of one method, valid or not."""
        changed = [one for one in combination.settings if one.name != axis.method]
        if setting is not None:
            changed.append(setting)
        return Combination(tuple(sorted(changed, key=lambda one: one.name)), combination.gpu_count, combination.mesh)
