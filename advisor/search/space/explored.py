"""Which points of a space were tried, which cannot be, and how many are left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from advisor.search.space.space import Combination, Count, ResolvedSpace

__all__ = ["Explored", "Point"]

Point = tuple[str, float]
"""What makes two proposals the same: the combination's label and the batch fraction."""

_MOST_LISTED = 10_000
"""Points up to which all are listed, so that the last ones are found as surely as the first."""

_DRAWS = 1000
"""Combinations drawn at random before untried ones are looked for one by one."""


class Explored:
    """What a search has explored of one space.

    Of a large space no list of all combinations is made: what was proposed is remembered.

    Args:
        space: What may be proposed.
    """

    def __init__(self, space: ResolvedSpace) -> None:
        self._space = space
        self._fractions = space.batch_fractions
        self._count = space.counted()
        small = self._count.exact and self._count.number * len(self._fractions) <= _MOST_LISTED
        self._listed = {one.label: one for one in space.combinations()} if small else None
        self._valid: dict[str, bool] = {}
        self._done: dict[Point, int] = {}
        self._excluded: set[str] = set()
        self._under_way: set[Point] = set()
        self._methods = {label: _names(one) for label, one in (self._listed or {}).items()}
        self._put_off: set[str] = set()

    @property
    def every_point(self) -> Iterator[tuple[Combination, float]] | None:
        """Every valid point, tried or not; ``None`` where there are too many to list."""
        if self._listed is None:
            return None
        return itertools.product(self._listed.values(), self._fractions)

    def __len__(self) -> int:
        """Points whose outcome is known."""
        return len(self._done)

    def __contains__(self, point: Point) -> bool:
        """Whether a point is to have no further run: its outcome is known, excluded, on its way, or put off."""
        if point in self._done or point in self._under_way or point[0] in self._excluded:
            return True
        return bool(self._put_off) and not self._put_off.isdisjoint(self._methods.get(point[0], ()))

    def point(self, combination: Combination, fraction: float) -> Point:
        """The point of a combination, whether it is a valid one or not."""
        self.is_valid(combination)
        return combination.label, fraction

    def is_valid(self, combination: Combination) -> bool:
        """Whether a combination may be proposed."""
        label = combination.label
        if label not in self._valid:
            self._valid[label] = self._space.accepts(combination)
            self._methods.setdefault(label, _names(combination))
        return self._valid[label]

    def number_of(self, point: Point) -> int | None:
        """Number of the trial that tried a point."""
        return self._done.get(point)

    def start(self, point: Point) -> None:
        """A point is under way."""
        self._under_way.add(point)

    def stop(self, point: Point) -> None:
        """A point is no longer under way."""
        self._under_way.discard(point)

    def finish(self, point: Point, number: int) -> None:
        """The outcome of a point is known; the first trial of it counts."""
        self._under_way.discard(point)
        self._done.setdefault(point, number)

    def exclude(self, label: str) -> None:
        """No fraction of a combination is worth a run any more."""
        self._excluded.add(label)

    def put_off(self, method: str) -> None:
        """No combination with a method is proposed as long as this process searches; they count as untried."""
        self._put_off.add(method)

    def draw(self, generator: random.Random, wish: Combination | None = None) -> tuple[Combination, float] | None:
        """An untried point at random, or ``None`` if none is left.

        Args:
            generator: Draws it.
            wish: In a large space, what is valid of this combination is preferred, if it is untried.
        """
        if self._listed is not None:
            left = [
                (combination, fraction)
                for label, combination in self._listed.items()
                for fraction in self._fractions
                if (label, fraction) not in self
            ]
            return generator.choice(left) if left else None
        drawn = [] if wish is None else [self._wished(generator, wish)]
        for number in range(_DRAWS):
            combination = drawn[number] if number < len(drawn) else self._space.draw(generator)
            fraction = generator.choice(self._fractions)
            if combination is not None and self.is_valid(combination) and (combination.label, fraction) not in self:
                return combination, fraction
        every = ((one, fraction) for one in self._space.combinations() for fraction in self._fractions)
        return next(
            ((one, fraction) for one, fraction in every if self.is_valid(one) and (one.label, fraction) not in self),
            None,
        )

    def points_left(self) -> Count:
        """How many points could still be proposed."""
        combinations = {label for label in self._excluded if self._valid.get(label)}
        points = {
            point
            for point in (*self._done, *self._under_way)
            if self._valid.get(point[0]) and point[0] not in combinations
        }
        left = (self._count.number - len(combinations)) * len(self._fractions) - len(points)
        assert left >= 0 or not self._count.exact, "more was tried than there is"
        # Where only a bound is known there is always more.
        return Count(left, True) if self._count.exact else Count(max(1, left), False)

    def _wished(self, generator: random.Random, wish: Combination) -> Combination | None:
        settings = list(wish.settings)
        generator.shuffle(settings)
        return self._space.completed(settings, wish.gpu_count, wish.mesh)


def _names(combination: Combination) -> frozenset[str]:
    return frozenset(setting.name for setting in combination.settings)
