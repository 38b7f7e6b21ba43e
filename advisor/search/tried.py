"""Which points of a space were tried, which cannot be, and which are left."""

from __future__ import annotations

from advisor.search.resolved import Combination, ResolvedSpace

__all__ = ["Point", "Tried"]

Point = tuple[str, float]
"""What makes two proposals the same: the combination's label and the batch fraction."""


class Tried:
    """The book of a search over one space.

    Args:
        space: What may be proposed.
    """

    def __init__(self, space: ResolvedSpace) -> None:
        self._fractions = space.batch_fractions
        self._valid = {combination.label: combination for combination in space.combinations()}
        self._done: dict[Point, int] = {}
        self._excluded: set[str] = set()
        self._under_way: set[Point] = set()

    def __len__(self) -> int:
        """Points whose outcome is known."""
        return len(self._done)

    def __contains__(self, point: Point) -> bool:
        """Whether a point needs no further run: its outcome is known, excluded, or on its way."""
        return point in self._done or point in self._under_way or point[0] in self._excluded

    def combination(self, label: str) -> Combination | None:
        """The combination of this label, or ``None`` if it is not a valid one."""
        return self._valid.get(label)

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

    def left(self) -> list[Point]:
        """Every point that could still be proposed."""
        points = ((label, fraction) for label in self._valid for fraction in self._fractions)
        return [point for point in points if point not in self]

    def combinations_left(self) -> int:
        """Combinations of which nothing was tried, excluded or started."""
        started = {label for label, _ in (*self._done, *self._under_way)} | self._excluded
        return len(self._valid.keys() - started)
