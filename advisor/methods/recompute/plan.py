"""Which blocks of a chain are kept for the backward pass, and which are run again from where: a tree.

A plan is a tuple with an item for every block, or run of blocks, in order. A number is a block that keeps everything
for its backward pass. A plan inside is a run of blocks of which only the input is kept: when the backward pass reaches
it, it runs again, and then keeps what that plan says. Blocks are numbered from 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Union

__all__ = ["Plan", "as_plan", "blocks_in", "halves", "root_segments", "segments", "shifted"]

Plan = tuple[Union[int, "Plan"], ...]


def segments(count: int, size: int) -> Plan:
    """Segments of ``size`` blocks; the last has what is left."""
    return tuple(tuple(range(start, min(start + size, count))) for start in range(0, count, size))


def root_segments(count: int) -> Plan:
    """About as many segments as blocks in each; their sizes differ by one at most."""
    number = math.isqrt(count - 1) + 1 if count else 0
    bounds = [index * count // number for index in range(number + 1)]
    return tuple(tuple(range(start, stop)) for start, stop in itertools.pairwise(bounds))


def halves(count: int, start: int = 0) -> Plan:
    """Two halves, each in two halves again, down to single blocks."""
    if count == 1:
        return (start,)
    left = count // 2
    return (halves(left, start), halves(count - left, start + left))


def shifted(plan: Plan, by: int) -> Plan:
    """The same plan for blocks that are numbered from ``by``."""
    return tuple(item + by if isinstance(item, int) else shifted(item, by) for item in plan)


def as_plan(value: object, stages: Sequence[range]) -> Plan | None:
    """A plan from the numbers and lists of JSON; ``None`` if it is no plan for the blocks of these stages.

    No segment may reach from one stage into the next.
    """

    def read(item: object) -> int | Plan:
        if isinstance(item, list) and item:
            return tuple(read(inner) for inner in item)
        if isinstance(item, int) and not isinstance(item, bool):
            return item
        raise ValueError(item)

    try:
        plan = read(value)
    except ValueError:
        return None
    if isinstance(plan, int) or blocks_in(plan) != [block for stage in stages for block in stage]:
        return None
    within = all(any(set(blocks_in(item)) <= set(stage) for stage in stages) for item in plan)
    return plan if within else None


def blocks_in(item: int | Plan) -> list[int]:
    """The blocks of a plan, or of one item of it, in their order."""
    return [item] if isinstance(item, int) else [block for inner in item for block in blocks_in(inner)]
