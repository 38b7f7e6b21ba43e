"""The climb of one combination to the largest size that keeps the floor, by prediction and bisection.

Groups of sizes with equal parameter counts (``size_ladder``) are climbed first, each at its smallest size, because
throughput falls from group to group but not along the whole chain; then the sizes inside the best group.

Parameters do not tell everything: a deep narrow model is slower than a shallow wide one with as many. A size that
failed rules out those at least as large in every argument, and no others. After the boundary is found, the next larger
sizes that nothing rules out are tried until two of them have failed.

Measurements predict where to measure next: throughput falls as a power of the size, and the memory for one sample grows
linearly. When predictions mislead, the bracket around the boundary is halved instead, so a climb over ``n`` sizes takes
at most about ``4 log2 n`` measurements, usually two or three. A size predicted not to fit in memory is not run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from advisor.search.sizing.line import Line
from advisor.search.sizing.size_ladder import Rung, groups_of, includes

__all__ = ["Climb", "Reached"]

_STEEPEST, _FLATTEST = -3.0, -0.3
"""Bounds of the exponent by which throughput falls with size: two noisy points may show anything."""

_PATIENCE = 3
"""Predictions in a row that may fail to halve the bracket before bisection takes over."""


_LOOKS = 2
"""Sizes beyond the boundary, ruled out by nothing, that may fail before the climb ends."""

_ROUNDING = 1 + 1e-9
"""A size exactly at the predicted boundary counts as inside."""


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How one combination did at one size.

    Attributes:
        kept: Whether it was measured at or above the floor.
        samples_per_second: Its throughput at its best batch; ``None`` if it was not measured.
        need_bytes: Peak that profiling runs predict for one sample, if they ran.
        fixed_bytes: The part of it that grows with the parameters alone.
    """

    kept: bool
    samples_per_second: float | None = None
    need_bytes: int | None = None
    fixed_bytes: int | None = None


class _Bracket:
    """The boundary among ordered places: all up to ``low`` keep the floor, all from ``high`` on do not."""

    def __init__(self, length: int) -> None:
        self.low, self.high = -1, length
        self._wasted = 0

    def choose(self, guess: int | None, ceiling: int) -> int | None:
        """The place to measure next, below ``ceiling``; ``None`` when the boundary is found."""
        high = min(self.high, ceiling)
        if high - self.low <= 1:
            return None
        if guess is None or self._wasted >= _PATIENCE:
            return (self.low + high) // 2
        return min(max(guess, self.low + 1), high - 1)

    def tell(self, place: int, kept: bool) -> None:
        """Record the result at a place."""
        before = self.high - self.low
        if kept:
            self.low = max(self.low, place)
            self.high = max(self.high, self.low + 1)  # noise: a larger size was kept after a smaller one was not
        else:
            self.high = max(min(self.high, place), self.low + 1)
        self._wasted = 0 if 2 * (self.high - self.low) <= before + 1 else self._wasted + 1


class Climb:
    """One combination on its way to the largest size above the floor.

    Ask :meth:`next` for the size to measure and :meth:`tell` the result, until there is none.

    Args:
        rungs: The chain.
        floor: Samples per second to keep.
        limit_bytes: The memory limit.
        above: Place of the record of other combinations: only larger sizes matter, and the next one is tried first.
    """

    def __init__(self, rungs: Sequence[Rung], *, floor: float, limit_bytes: int, above: int = -1) -> None:
        self._rungs = rungs
        self._floor = floor
        self._limit_bytes = limit_bytes
        self._above = above
        self._reached: dict[int, Reached] = {}
        self._groups = groups_of(rungs)
        first = 0 if above < 0 else self._group_of(above) + 1
        self._places = [group[0] for group in self._groups[first:]]
        self._bracket = _Bracket(len(self._places))
        self._inside = False
        self._looking = False
        self._looks_left = _LOOKS
        self.screened: tuple[int, int] | None = None
        """The size next to the largest reached and its predicted need, where that is what ended the climb."""

    @property
    def best(self) -> int | None:
        """Place of the largest size that kept the floor."""
        return max((index for index, reached in self._reached.items() if reached.kept), default=None)

    def tell(self, index: int, reached: Reached) -> None:
        """Record the combination's result at a size."""
        self._reached[index] = reached
        if self._looking and not self._inside:
            self._looks_left -= not reached.kept
            return
        if index in self._places:
            self._bracket.tell(self._places.index(index), reached.kept)
        elif reached.kept and not self._inside:
            # A larger image of the same model kept the floor, so its smallest does too.
            head = self._groups[self._group_of(index)][0]
            if head in self._places:
                self._bracket.tell(self._places.index(head), True)

    def next(self) -> int | None:
        """The place in the chain to measure next, or ``None`` when the largest size is known."""
        if not self._inside:
            index = None if self._looking else self._next_place()
            if index is None:
                index = self._look()
            if index is not None:
                return index
            self._go_inside()
        return self._next_place()

    def _next_place(self) -> int | None:
        ceiling, need = self._ceiling()
        place = self._bracket.choose(self._guess(ceiling), ceiling)
        if place is not None:
            return self._places[place]
        if need is not None and ceiling == self._bracket.low + 1 and ceiling < self._bracket.high:
            self.screened = (self._places[ceiling], need)
        return None

    def _look(self) -> int | None:
        """The next larger size that neither a failure nor memory rules out, once some size kept the floor."""
        self._looking = True
        best = self.best
        if best is None or self._looks_left < 1:
            return None
        ceiling, _ = self._ceiling()
        failed = [self._rungs[index] for index, reached in self._reached.items() if not reached.kept]
        for index in self._places[:ceiling]:
            rung = self._rungs[index]
            if index > best and index not in self._reached and not any(includes(rung, one) for one in failed):
                return index
        return None

    def _go_inside(self) -> None:
        """Go from the groups to the sizes of the largest group that kept the floor, or of the record."""
        self._inside = True
        best = self.best
        start = self._above if best is None else max(best, self._above)
        group = self._groups[self._group_of(start)] if start >= 0 else ()
        self._places = [index for index in group if index > start]
        self._bracket = _Bracket(len(self._places))
        for place, index in enumerate(self._places):
            if index in self._reached:
                self._bracket.tell(place, self._reached[index].kept)

    def _group_of(self, index: int) -> int:
        return next(number for number, group in enumerate(self._groups) if index in group)

    # -- prediction ---------------------------------------------------------------------------------------------

    def _guess(self, ceiling: int) -> int | None:
        """The largest place that is predicted to keep the floor; ``None`` when there is nothing to predict from."""
        if not self._measured() and self._above >= 0:
            return 0  # a combination that cannot beat the record by one size is done
        reach = self._reach()
        if reach is None:
            return None
        able = [place for place, index in enumerate(self._places[:ceiling]) if self._extent(index) <= reach * _ROUNDING]
        return max(able, default=0)

    def _reach(self) -> float | None:
        """The extent at which throughput is predicted to meet the floor."""
        points = sorted((self._extent(i), reached.samples_per_second) for i, reached in self._measured())
        rates = [(math.log(extent), math.log(rate)) for extent, rate in points if extent > 0 and rate]
        if not rates:
            return None
        x, y = rates[-1]
        slope = -1.0
        if len(rates) > 1 and rates[-2][0] < x:
            slope = min(_FLATTEST, max(_STEEPEST, (y - rates[-2][1]) / (x - rates[-2][0])))
        exponent = x + (math.log(self._floor) - y) / slope
        return math.exp(min(exponent, 700.0))

    def _ceiling(self) -> tuple[int, int | None]:
        """The first place predicted not to fit in memory, and the bytes it needs."""
        line = self._memory()
        if line is not None:
            for place, index in enumerate(self._places):
                need = line.at(self._extent(index))
                if place > self._bracket.low and need > self._limit_bytes:
                    return place, math.ceil(need)
        return len(self._places), None

    def _memory(self) -> Line | None:
        """Bytes that one sample needs against the extent."""
        needs = {self._extent(i): reached for i, reached in self._relevant() if reached.need_bytes is not None}
        points = [(extent, float(reached.need_bytes or 0)) for extent, reached in sorted(needs.items())]
        if len(points) > 1:
            return Line.through(points[-2], points[-1])
        if not points or self._inside:
            return None
        # One size shows the part that grows with the parameters alone; constant activations are a lower bound.
        ((extent, reached),) = needs.items()
        fixed = float(min(reached.fixed_bytes or 0, reached.need_bytes or 0))
        return Line(float(reached.need_bytes or 0) - fixed, fixed / max(extent, 1.0))

    def _measured(self) -> list[tuple[int, Reached]]:
        return [(index, reached) for index, reached in self._relevant() if reached.samples_per_second is not None]

    def _relevant(self) -> list[tuple[int, Reached]]:
        """Results at comparable sizes: inside a group, only those of the group."""
        if not self._inside:
            return list(self._reached.items())
        group = self._groups[self._group_of(self._places[0])] if self._places else ()
        return [(index, reached) for index, reached in self._reached.items() if index in group]

    def _extent(self, index: int) -> float:
        """The predictor of throughput and memory: parameters, or the values of the size inside a group."""
        if not self._inside:
            return float(self._rungs[index].parameter_count)
        return float(math.prod(self._rungs[index].size.values()))
