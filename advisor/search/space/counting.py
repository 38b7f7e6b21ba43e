"""How many combinations of many axes are valid, without making them.

An axis is off or has one of its settings; settings of different axes may exclude each other, and an axis may need the
company of another. Axes that no conflict and no need of company connects are counted apart and multiplied. What is
connected is counted by fixing the axis with the most conflicts to each of its values in turn: that decides much of the
others, and the rest falls apart again. So thirty axes take some hundreds of such steps, where their combinations would
be more than anyone can make one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

__all__ = ["Choices", "Count"]

_OFF = 1
"""Mask of the value 0, which every axis begins with: off."""

_MOST_STEPS = 10_000
"""Axes fixed in one count, at about a ten-thousandth of a second each; beyond, the rest is bounded from below."""


class Count(msgspec.Struct, frozen=True):
    """A number of combinations.

    Attributes:
        number: As many there are; at least as many, if it is not exact.
        exact: Whether that is the number.
    """

    number: int
    exact: bool = True


class Choices:
    """Axes by number, each with the values 0 (off), 1, 2 ... as bits of a mask.

    Args:
        sizes: Settings of each axis, off not counted.
        conflicts: Pairs of ``(axis, value)`` that exclude each other.
        company: Axis -> axes of which one must be in use beside it.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        conflicts: Iterable[tuple[tuple[int, int], tuple[int, int]]],
        company: Mapping[int, Sequence[int]],
    ) -> None:
        self._full = tuple((1 << (size + 1)) - 1 for size in sizes)
        self._company = {axis: tuple(others) for axis, others in company.items()}
        self._excluded: dict[tuple[int, int], dict[int, int]] = {}
        for one, other in conflicts:
            for first, (axis, value) in ((one, other), (other, one)):
                masks = self._excluded.setdefault(first, {})
                masks[axis] = masks.get(axis, 0) | 1 << value
        self._steps_left = 0
        self._known: dict[tuple[tuple[int, int], ...], int] = {}
        self._exact = True

    def count(self, off: Iterable[int] = (), one_of: Sequence[int] | None = None, *, steps: int = _MOST_STEPS) -> Count:
        """Number of valid combinations.

        Args:
            off: Axes that are not in use.
            one_of: Axes of which exactly one is in use; default: no such rule.
            steps: Axes that may be fixed before the rest is bounded.
        """
        self._steps_left, self._exact, self._known = steps, True, {}
        masks = list(self._full)
        for axis in off:
            masks[axis] = _OFF
        axes = tuple(range(len(masks)))
        if one_of is None:
            return Count(self._count(masks, axes), self._exact)
        number = 0
        for chosen in one_of:
            for value in _values(masks[chosen] & ~_OFF):
                fixed = [_OFF if axis in one_of else mask for axis, mask in enumerate(masks)]
                fixed[chosen] = masks[chosen]
                reduced = self._fixed(fixed, chosen, value)
                number += 0 if reduced is None else self._count(reduced, axes)
        return Count(number, self._exact)

    def _count(self, masks: list[int], axes: Sequence[int]) -> int:
        """Ways to choose a value of each of ``axes`` from its mask; the other axes do not concern them."""
        settled = self._settled(masks)
        if settled is None:
            return 0
        number = 1
        for part in self._parts(settled, [axis for axis in axes if settled[axis].bit_count() > 1]):
            number *= settled[part[0]].bit_count() if len(part) == 1 else self._count_part(settled, part)
        return number

    def _count_part(self, masks: list[int], part: Sequence[int]) -> int:
        """Ways of connected axes."""
        involved = {*part, *(axis for axis, others in self._company.items() if set(others) & set(part))}
        key = tuple((axis, masks[axis]) for axis in sorted(involved))
        if key in self._known:
            return self._known[key]
        if self._steps_left == 0:
            self._exact = False
            return self._bound(masks, part)
        self._steps_left -= 1
        axis = max(part, key=lambda axis: len(self._neighbours(masks, axis, part)))
        number = 0
        for value in _values(masks[axis]):
            reduced = self._fixed(masks, axis, value)
            number += 0 if reduced is None else self._count(reduced, part)
        self._known[key] = number
        return number

    def _bound(self, masks: list[int], part: Sequence[int]) -> int:
        """No more than the ways of connected axes: those in which only axes are in use that nothing connects."""
        if any(not masks[axis] & _OFF for axis in self._pending(masks)):
            return 0  # It is in use and still without company: which ways are left is not seen at once.
        number = 1
        used: set[int] = set()
        for axis in sorted(part, key=lambda axis: len(self._neighbours(masks, axis, part))):
            near = self._neighbours(masks, axis, part)
            if masks[axis] & _OFF and not near & used and axis not in self._company:
                number *= masks[axis].bit_count()
                used.add(axis)
        return number

    def _fixed(self, masks: Sequence[int], axis: int, value: int) -> list[int] | None:
        """The masks when an axis has a value, or ``None`` if that leaves another axis none."""
        reduced = list(masks)
        reduced[axis] = 1 << value
        for other, excluded in self._excluded.get((axis, value), {}).items():
            reduced[other] &= ~excluded
            if not reduced[other]:
                return None
        return reduced

    def _settled(self, masks: list[int]) -> list[int] | None:
        """The masks without axes that can have no company; ``None`` if one of them is in use."""
        settled = list(masks)
        while True:
            alone = [axis for axis in self._pending(settled) if all(settled[o] == _OFF for o in self._company[axis])]
            if not alone:
                return settled
            for axis in alone:
                settled[axis] &= _OFF
                if not settled[axis]:
                    return None

    def _pending(self, masks: Sequence[int]) -> list[int]:
        """Axes that may be in use and are not sure of their company."""
        return [
            axis
            for axis, others in self._company.items()
            if masks[axis] != _OFF and all(masks[other] & _OFF for other in others)
        ]

    def _neighbours(self, masks: Sequence[int], axis: int, axes: Iterable[int]) -> set[int]:
        """Those of ``axes`` whose choice depends on that of ``axis``."""
        near = {
            other
            for value in _values(masks[axis])
            for other, excluded in self._excluded.get((axis, value), {}).items()
            if excluded & masks[other]
        }
        for owner in self._pending(masks):
            together = {owner, *self._company[owner]}
            if axis in together:
                near |= together
        return near & set(axes) - {axis}

    def _parts(self, masks: Sequence[int], axes: Sequence[int]) -> list[list[int]]:
        """The axes in groups that do not depend on each other."""
        parts: list[list[int]] = []
        unseen = dict.fromkeys(axes)
        while unseen:
            part = [next(iter(unseen))]
            del unseen[part[0]]
            for axis in part:  # It grows while it is walked.
                for other in sorted(self._neighbours(masks, axis, unseen)):
                    part.append(other)
                    del unseen[other]
            parts.append(part)
        return parts


def _values(mask: int) -> list[int]:
    return [value for value in range(mask.bit_length()) if mask >> value & 1]
