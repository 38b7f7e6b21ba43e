"""What a plan of recomputation costs, for comparison."""

from __future__ import annotations

from advisor.methods.recompute.plan import Plan


def runs(plan: Plan) -> list[int]:
    """How often each block's forward pass runs in a step: once, and once more for every plan around it."""
    counts: dict[int, int] = {}

    def visit(item: int | Plan, depth: int) -> None:
        if isinstance(item, int):
            counts[item] = depth
        else:
            for inner in item:
                visit(inner, depth + 1)

    for item in plan:
        visit(item, 1)
    return [counts[block] for block in sorted(counts)]
