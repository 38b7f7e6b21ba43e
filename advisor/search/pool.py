"""The untried points that a proposal is chosen from: all of them, or of a large space those worth looking at."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from advisor.methods.use import MethodUse
from advisor.search.factors import Choice, Factors, Levels
from advisor.search.resolved import Combination, ResolvedSpace
from advisor.search.tried import Tried

__all__ = ["Pool"]

_DRAWS = 1000
"""Combinations drawn at random, so that no part of a large space is out of sight."""

_MOST_NEIGHBOURS = 1000
"""Combinations two changes away of each good one: drawn at random where there are more."""


class Pool:
    """Untried points of a space.

    Args:
        space: What may be proposed.
        tried: What was.
        factors: The factors of the space.
    """

    def __init__(self, space: ResolvedSpace, tried: Tried, factors: Factors) -> None:
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
        """Untried points with their levels; empty if there are none.

        Args:
            generator: Draws, where not all can be listed.
            good: Where all cannot be listed, combinations whose surroundings are worth a look.
        """
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

    def _near(self, combination: Combination, generator: random.Random) -> list[Combination]:
        """A combination, those one change away, and some of those two changes away."""
        once = list(self._changed(combination))
        twice = [again for one in generator.sample(once, min(len(once), 30)) for again in self._changed(one)]
        return [combination, *once, *generator.sample(twice, min(len(twice), _MOST_NEIGHBOURS))]

    def _changed(self, combination: Combination) -> Iterator[Combination]:
        """Every valid combination with one setting more, less or another, or on another number of devices."""
        for axis in self._space.axes:
            others = tuple(use for use in combination.uses if use.name != axis.method)
            choices: list[tuple[MethodUse, ...]] = [(setting,) for setting in axis.settings]
            for chosen in ((), *choices):
                uses = tuple(sorted((*others, *chosen), key=lambda use: use.name))
                changed = Combination(uses, combination.gpu_count)
                if changed != combination and self._tried.is_valid(changed):
                    yield changed
        for gpu_count in self._space.gpu_counts:
            moved = self._space.completed(combination.uses, gpu_count)
            if moved is not None and moved != combination:
                yield moved
