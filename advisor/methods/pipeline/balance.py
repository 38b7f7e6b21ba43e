"""Where to cut a chain of blocks into stages, from measured times and bytes. No torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec

from advisor.errors import MethodRefusedError

__all__ = ["Cost", "Costs", "balanced", "best_cut", "even", "require_bounds"]


class Cost(msgspec.Struct, frozen=True):
    """What a block, or what is before or after all blocks, costs the stage that has it.

    Attributes:
        seconds: Forward and backward pass of a micro-batch.
        bytes: Parameters, gradients and optimizer state.
        activation_bytes: What a micro-batch keeps for its backward pass.
    """

    seconds: float
    bytes: float = 0.0
    activation_bytes: float = 0.0


class Costs(msgspec.Struct, frozen=True):
    """Those of a model.

    Attributes:
        before: Of what comes before the blocks (the embedding).
        blocks: Of each block.
        after: Of what comes after them (the head and the loss).
    """

    before: Cost
    blocks: tuple[Cost, ...]
    after: Cost

    def holding(self, before: float, blocks: Sequence[float], after: float) -> Costs:
        """The same with the bytes that are held between steps."""
        return Costs(
            msgspec.structs.replace(self.before, bytes=before),
            tuple(msgspec.structs.replace(one, bytes=own) for one, own in zip(self.blocks, blocks, strict=True)),
            msgspec.structs.replace(self.after, bytes=after),
        )


_NOTHING = Cost(0.0)


def even(blocks: int, stages: int) -> tuple[int, ...]:
    """Cut points that give every stage as many blocks, up to one; where there are more, the middle has them.

    The first and the last stage have the embedding and the head besides.

    Args:
        blocks: Number of blocks.
        stages: Number of stages.

    Returns:
        The number of the first block of every stage, then the number of blocks.

    Raises:
        MethodRefusedError: There are fewer blocks than stages.
    """
    return balanced([Cost(1.0)] * blocks, stages, before=Cost(1e-3), after=Cost(1e-3))


def require_bounds(bounds: Sequence[int], stages: int, blocks: int) -> None:
    """Require one for each stage and one for the end.

    Raises:
        MethodRefusedError: They are of another number of stages or blocks.
    """
    if len(bounds) != stages + 1 or bounds[0] != 0 or bounds[-1] != blocks:
        raise MethodRefusedError(
            f"a model of {blocks} blocks in {stages} stages must be cut at {stages + 1} bounds from 0 to {blocks}, but "
            f"they are {', '.join(map(str, bounds))}; without bounds, all stages get as many"
        )


def balanced(
    blocks: Sequence[Cost],
    stages: int,
    *,
    before: Cost = _NOTHING,
    after: Cost = _NOTHING,
    limit: float | None = None,
    in_flight: Sequence[int] = (),
) -> tuple[int, ...]:
    """The cut points whose slowest stage is fastest, among those that fit; of these, the most even ones.

    Exact: dynamic programming over (stage, first block), once for the time of the slowest stage and once, under that
    time, for the sum of squares.

    Args:
        blocks: Cost of each block.
        stages: Number of stages; each gets at least one block.
        before: Cost of what comes before the blocks (the embedding).
        after: Cost of what comes after them (the head and the loss).
        limit: Most bytes of a stage.
        in_flight: Micro-batches whose activations each stage keeps at once; default: one.

    Returns:
        The number of the first block of every stage, then the number of blocks.

    Raises:
        MethodRefusedError: There are fewer blocks than stages, or no cut fits.
    """
    if len(blocks) < stages:
        raise MethodRefusedError(
            f"every stage of a pipeline needs a block, but the model has {len(blocks)} for {stages} stages; use fewer "
            "devices along the pipeline, or a schedule with one stage per device"
        )
    alive = in_flight or [1] * stages
    assert len(alive) == stages, "a number for each stage"

    def time_of(stage: int, start: int, stop: int) -> float:
        """Seconds of a stage; infinite where it does not fit."""
        parts = [*([before] if stage == 0 else []), *blocks[start:stop], *([after] if stage == stages - 1 else [])]
        held = sum(part.bytes + alive[stage] * part.activation_bytes for part in parts)
        return math.inf if limit is not None and held > limit else sum(part.seconds for part in parts)

    times = {
        (stage, start, stop): time_of(stage, start, stop)
        for stage in range(stages)
        for start, stop in itertools.combinations(range(len(blocks) + 1), 2)
    }
    slowest, _ = _best(times, len(blocks), stages, lambda time: time, max)
    if math.isinf(slowest):
        raise MethodRefusedError(
            f"every stage of a pipeline must fit below {limit:.4g} bytes, but however {len(blocks)} blocks are cut "
            f"into {stages} stages, one does not; use more devices along the pipeline, or smaller micro-batches"
        )
    _, cuts = _best(
        times,
        len(blocks),
        stages,
        lambda time: time * time if time <= slowest * (1 + 1e-12) else math.inf,
        lambda one, other: one + other,
    )
    return cuts


def best_cut(costs: Costs, stages: int, *, limit: float | None, in_flight: Sequence[int]) -> tuple[int, ...]:
    """The fastest cut that fits, or where none does the one whose fullest stage takes least.

    Args:
        costs: What each part of the model costs.
        stages: Number of stages.
        limit: Most bytes of a stage, if known.
        in_flight: Micro-batches whose activations each stage keeps at once.
    """
    try:
        return balanced(costs.blocks, stages, before=costs.before, after=costs.after, limit=limit, in_flight=in_flight)
    except MethodRefusedError:
        pass

    def by_bytes(cost: Cost) -> Cost:
        return Cost(cost.bytes + max(in_flight) * cost.activation_bytes)

    blocks = [by_bytes(block) for block in costs.blocks]
    return balanced(blocks, stages, before=by_bytes(costs.before), after=by_bytes(costs.after))


def _best(
    times: dict[tuple[int, int, int], float],
    count: int,
    stages: int,
    cost: Callable[[float], float],
    join: Callable[[float, float], float],
) -> tuple[float, tuple[int, ...]]:
    """The least joined cost of all stages, and the cut points that have it."""
    # Stop -> the best way to cut the blocks before it into the stages so far.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for stage in range(stages):
        rest = stages - 1 - stage
        best = {
            stop: min(
                (join(so_far, cost(times[stage, start, stop])), (*cuts, stop))
                for start, (so_far, cuts) in best.items()
                if start < stop
            )
            for stop in (range(stage + 1, count - rest + 1) if rest else (count,))
        }
    return best[count]
