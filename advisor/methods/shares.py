"""What each micro-batch counts in the gradient of the whole batch, on one process and on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from advisor.errors import WorkloadError
from advisor.methods.batch import map_tensors
from advisor.methods.world import World

__all__ = ["weighed"]


def weighed(pieces: list[Any], count: Callable[[Any], tuple[float, bool]], world: World) -> list[tuple[Any, float]]:
    """The micro-batches to compute, each with the factor of its loss.

    The factor is the micro-batch's share of all targets: a mean of means would be wrong where they differ in padding.
    With several processes it is larger by their number, because gradients are averaged over them.

    Args:
        pieces: The micro-batches of this process; all processes have the same number of them.
        count: What the loss of a micro-batch averages over, and whether that may differ between processes.
        world: The processes.

    Raises:
        WorkloadError: One of the processes has no target in its share; raised in all of them.
    """
    counts = [count(piece) for piece in pieces]
    own = sum(targets for targets, _ in counts)
    total = _total(own, world) if any(differs for _, differs in counts) else own * world.size
    # Without any target at all plain training gives NaN; equal shares keep it visible.
    if not total:
        return [(piece, 1.0 / len(pieces)) for piece in pieces]
    # A micro-batch without target would be 0/0, and adds nothing to the gradient.
    useful = [
        (piece, targets * world.size / total) for piece, (targets, _) in zip(pieces, counts, strict=True) if targets
    ]
    # Processes meet in every pass, so all must make the same number of them: another one is computed for nothing.
    idle = len(pieces) - len(useful) if world.size > 1 else 0
    return [(_another(useful[0][0]), 0.0) for _ in range(idle)] + useful


def _another(piece: Any) -> Any:
    """The same samples as an object of its own."""
    return map_tensors(piece, lambda tensor: tensor.view_as(tensor))


def _total(own: float, world: World) -> float:
    """Targets of all processes together."""
    total = world.total(own)
    without = world.total(float(own == 0)) if world.size > 1 else 0.0
    if without and total:
        raise WorkloadError(
            f"every process must have at least one target in its share of the batch, but {without:.0f} of "
            f"{world.size} have none; leave samples without targets out of the data"
        )
    return total
