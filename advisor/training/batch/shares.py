"""What each micro-batch counts in the gradient of the whole batch, on one process and on several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from advisor.errors import WorkloadError
from advisor.training.batch.tree import map_tensors
from advisor.training.world import World

__all__ = ["require_even", "require_one_process", "require_targets", "weighed"]


def weighed(
    pieces: list[Any],
    count: Callable[[Any], tuple[float, bool]],
    world: World,
    *,
    at_least: float = 0.0,
    samples: Callable[[Any], int] | None = None,
) -> list[tuple[Any, float]]:
    """The micro-batches to compute, each with the factor of its loss.

    The factor is the micro-batch's share of all targets: a mean of means would be wrong where they differ in padding.
    With several processes it is larger by their number, because gradients are averaged over them.

    Args:
        pieces: The micro-batches of this process; all processes have the same number of them.
        count: What the loss of a micro-batch averages over, and whether that may differ between processes.
        world: The processes.
        at_least: What the loss divides by where there are fewer targets.
        samples: How many a micro-batch has, which is its share where no target is anywhere.

    Raises:
        WorkloadError: One of the processes has no target in its share; raised in all of them.
    """
    counts = [count(piece) for piece in pieces]
    own = sum(targets for targets, _ in counts)
    differs = any(one for _, one in counts)
    total = _total(own, world, at_least) if differs else max(at_least, own * world.size)
    # Without any target at all plain training gives NaN, or has the loss of something else, such as a penalty.
    if not total:
        sizes = [1 if samples is None else samples(piece) for piece in pieces]
        return [(piece, size / sum(sizes)) for piece, size in zip(pieces, sizes, strict=True)]
    # A micro-batch without target would be 0/0, and adds nothing to the gradient.
    useful = [
        (piece, max(targets, at_least) * world.size / total)
        for piece, (targets, _) in zip(pieces, counts, strict=True)
        if targets or at_least
    ]
    # Processes meet in every pass, so all must make the same number of them: another one is computed for nothing.
    idle = len(pieces) - len(useful) if world.size > 1 else 0
    return [(_another(useful[0][0]), 0.0) for _ in range(idle)] + useful


def require_targets(shares: Sequence[tuple[Any, float]], pieces: int) -> None:
    """Every micro-batch must have targets, where the loss of one without any was seen not to be weighed by them.

    Raises:
        WorkloadError: One has none.
    """
    without = pieces - sum(1 for _, share in shares if share)
    if without:
        raise WorkloadError(
            f"every micro-batch must have a target, because the loss of one without any follows another rule, but "
            f"{without} of {pieces} have none; leave samples without targets out of the batch, or give batches of at "
            "most micro_batch samples"
        )


def require_even(shares: Sequence[tuple[Any, float]], samples: Callable[[Any], int], pieces: Sequence[Any]) -> None:
    """Every micro-batch must have as many targets for each sample, where the loss is in part a mean over samples.

    Raises:
        WorkloadError: They have not.
    """
    share_of = {id(piece): share for piece, share in shares}
    weights, sizes = [share_of.get(id(piece), 0.0) for piece in pieces], [samples(piece) for piece in pieces]
    if not all(
        math.isclose(weight, size / sum(sizes), rel_tol=1e-6)  # those of all processes, which have as many samples
        for weight, size in zip(weights, sizes, strict=True)
    ):
        raise WorkloadError(
            "every micro-batch must have as many targets for each sample, because the loss is in part a mean over "
            f"targets and in part one over samples, but micro-batches of {', '.join(map(str, sizes))} samples have "
            f"{', '.join(f'{100 * weight:.3g} %' for weight in weights)} of the targets. Give batches of at most "
            "micro_batch samples, or make both parts means over the same"
        )


def require_one_process(world: World) -> None:
    """No other process may have a share, where a sum is divided by a number that the batch brings along.

    Raises:
        WorkloadError: There are several.
    """
    if world.size > 1:
        raise WorkloadError(
            "the loss is a sum that is divided by a number in the batch, and with several processes nobody knows "
            "whether that counts the share of one or the batch of all; train on one device, or count in the loss what "
            "the share has, as len(batch[...]) does"
        )


def _another(piece: Any) -> Any:
    """The same samples as an object of its own."""
    return map_tensors(piece, lambda tensor: tensor.view_as(tensor))


def _total(own: float, world: World, at_least: float) -> float:
    """Targets of all processes together."""
    total = world.total(own)
    if at_least:
        return max(at_least, total)
    without = world.total(float(own == 0)) if world.size > 1 else 0.0
    if without and total:
        raise WorkloadError(
            f"every process must have at least one target in its share of the batch, but {without:.0f} of "
            f"{world.size} have none; leave samples without targets out of the data"
        )
    return total
