"""The plan that runs a chain of blocks in the least time, of all whose kept bytes stay within a budget.

The blocks may differ. This is the dynamic program of Beaumont et al. 2019 for heterogeneous chains (their Rotor): of a
run of blocks, either the first keeps everything, or some first ones keep only their input, which is there anyway, and
run again when the rest is done. A block's backward pass runs once in every plan, so only the seconds of forward passes
matter. Gradients and workspaces come on top of the budget, and are about the same for every plan.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from advisor.methods.recompute.plan import Plan

__all__ = ["Unit", "bytes_of_everything", "evened", "held_at_most", "least_plan", "optimal_plan"]

_SLOTS = 300
"""Parts of a budget. A finer division takes more time and hardly finds better plans."""

_FINEST = 0.25
"""Share of the quickest block's seconds; smaller differences are chance."""

_SPARE = 1.25
"""Plans are made for up to this many budgets: what slots round up may still fit. The plan is checked in bytes."""

_MOST_UNITS = 100
"""Longer chains are planned in groups of equal length: the time to plan grows with the cube of their number."""


class Unit(msgspec.Struct, frozen=True):
    """A block, or several that are treated as one.

    Attributes:
        seconds: Of its forward pass, in any unit of time or work.
        kept: Bytes that it keeps at most for its backward pass, with its output and without its input.
        output: Bytes of its output.
    """

    seconds: float
    kept: int
    output: int


def evened(units: Sequence[Unit], kinds: Sequence[Hashable]) -> list[Unit]:
    """Remove chance from measured seconds, on which the plan, and so the memory, must not depend.

    Blocks of a kind that keep equally many bytes get the fewest seconds of them all, and seconds become multiples of a
    quarter of the quickest block's.
    """
    fewest: dict[Hashable, float] = {}
    alike = [(kind, unit.kept, unit.output) for unit, kind in zip(units, kinds, strict=True)]
    for unit, same in zip(units, alike, strict=True):
        fewest[same] = min(fewest.get(same, unit.seconds), unit.seconds)
    quickest = min(fewest.values())
    if quickest <= 0:  # nothing that takes time under fake tensors
        return list(units)
    return [
        Unit(round(fewest[same] / quickest / _FINEST) * _FINEST, unit.kept, unit.output)
        for unit, same in zip(units, alike, strict=True)
    ]


def bytes_of_everything(units: Sequence[Unit]) -> int:
    """Bytes when every block keeps everything."""
    return sum(unit.kept for unit in units)


def held_at_most(plan: Plan, units: Sequence[Unit]) -> int:
    """The most bytes that a plan keeps at any time of a step, without the input of the first block."""
    return _held(plan, units)[0]


def optimal_plan(units: Sequence[Unit], budget: int) -> Plan | None:
    """The fastest plan whose :func:`held_at_most` is within a budget of bytes; ``None`` if there is none."""
    if bytes_of_everything(units) <= budget:
        return tuple(range(len(units)))
    size, grouped = _grouped(units)
    table = _Table(grouped, budget / _SLOTS, int(_SLOTS * _SPARE))
    for slots in range(table.slots, -1, -1):  # More slots never make a plan slower: the first that fits is the best.
        plan = table.plan(slots)
        if plan is None:
            break
        if held_at_most(plan, grouped) <= budget:
            return _ungrouped(plan, size, len(units))
    plan = least_plan(units)  # Slots round; that there is a plan is known to the byte.
    return plan if held_at_most(plan, units) <= budget else None


def least_plan(units: Sequence[Unit]) -> Plan:
    """A plan that keeps the fewest bytes of all (for long chains: of all plans of groups)."""
    size, grouped = _grouped(units)
    count = len(grouped)
    least = np.zeros((count + 1, count), dtype=np.float64)  # Of blocks start..stop; zero for an empty run.
    choice = np.full((count, count), -1)
    for start in range(count - 1, -1, -1):
        for stop in range(start, count):
            best, chosen = grouped[start].kept + (least[start + 1, stop] if start < stop else 0.0), start - 1
            for last in range(start, stop):
                held = max(grouped[last].output + least[last + 1, stop], least[start, last])
                if held < best:
                    best, chosen = held, last
            least[start, stop], choice[start, stop] = best, chosen
    return _ungrouped(_read(choice, 0, count - 1), size, len(units))


class _Table:
    """The dynamic program: for all runs of units and all numbers of slots, the seconds and the first decision.

    ``slot`` is the number of bytes in a slot, ``slots`` the largest number of these.
    """

    def __init__(self, units: Sequence[Unit], slot: float, slots: int) -> None:
        self.slots = slots
        self._kept = [_rounded(unit.kept, slot) for unit in units]
        self._output = [_rounded(unit.output, slot) for unit in units]
        count, width = len(units), slots + 1
        # By start and stop: seconds of forward passes. By stop and last: the same for what comes after last, when its
        # output takes room too; so that all choices of last lie side by side in both.
        self._seconds = np.full((count, count, width), np.inf)
        after = np.full((count, count, width), np.inf)
        self._choice = np.full((count, count, width), -2, dtype=np.int16)
        ends = np.cumsum([unit.seconds for unit in units])
        for start in range(count - 1, -1, -1):
            first = ends[start] - units[start].seconds
            for stop in range(start, count):
                rest = self._seconds[start + 1, stop] if start < stop else np.zeros(width)
                best = _with_less_room(rest, self._kept[start]) + units[start].seconds
                chosen = np.where(np.isfinite(best), start - 1, -2)
                if start < stop:
                    again = (ends[start:stop] - first)[:, None]
                    all_choices = after[stop, start:stop] + self._seconds[start, start:stop] + again
                    last = all_choices.argmin(axis=0)
                    fastest = np.take_along_axis(all_choices, last[None], axis=0)[0]
                    better = fastest < best
                    best = np.where(better, fastest, best)
                    chosen = np.where(better, start + last, chosen)
                self._seconds[start, stop] = best
                self._choice[start, stop] = chosen
                if start > 0:
                    after[stop, start - 1] = _with_less_room(best, self._output[start - 1])

    def plan(self, slots: int) -> Plan | None:
        count = len(self._kept)
        if not math.isfinite(self._seconds[0, count - 1, slots]):
            return None
        return self._plan(0, count - 1, slots)

    def _plan(self, start: int, stop: int, slots: int) -> Plan:
        items: list[int | Plan] = []
        while start <= stop:
            last = int(self._choice[start, stop, slots])
            if last < start:
                items.append(start)
                slots -= self._kept[start]
                start += 1
            else:
                items.append(self._plan(start, last, slots))
                slots -= self._output[last]
                start = last + 1
        return tuple(items)


def _read(choice: np.ndarray, start: int, stop: int) -> Plan:
    """The plan of a table of first decisions: the last block of a run to run again, or one before the first."""
    items: list[int | Plan] = []
    while start <= stop:
        last = int(choice[start, stop])
        items.append(start if last < start else _read(choice, start, last))
        start = max(last, start) + 1
    return tuple(items)


def _held(plan: Plan, units: Sequence[Unit]) -> tuple[int, int]:
    """The most bytes held by a plan, and the number of its last unit."""
    held = most = last = 0
    for item in plan:
        if isinstance(item, int):
            last = item
            held += units[item].kept
        else:
            inside, last = _held(item, units)
            most = max(most, held + inside)  # When it runs again, what came after it is gone.
            held += units[last].output
    return max(most, held), last


def _with_less_room(seconds: np.ndarray, slots: int) -> np.ndarray:
    """Seconds by number of slots, when so many of these are taken."""
    shifted = np.full_like(seconds, np.inf)
    if slots < len(seconds):
        shifted[slots:] = seconds[: len(seconds) - slots]
    return shifted


def _rounded(count: int, slot: float) -> int:
    # Far more than there are slots is as good as just more.
    return round(min(count / slot, 10.0 * _SLOTS))


def _grouped(units: Sequence[Unit]) -> tuple[int, list[Unit]]:
    """The units in as many groups as can be planned, and the size of these."""
    size = -(-len(units) // _MOST_UNITS)
    groups = [units[start : start + size] for start in range(0, len(units), size)]
    return size, [
        Unit(sum(unit.seconds for unit in group), bytes_of_everything(group), group[-1].output) for group in groups
    ]


def _ungrouped(plan: Plan, size: int, count: int) -> Plan:
    items: list[int | Plan] = []
    for item in plan:
        if isinstance(item, int):
            items += range(item * size, min((item + 1) * size, count))
        else:
            items.append(_ungrouped(item, size, count))
    return tuple(items)
