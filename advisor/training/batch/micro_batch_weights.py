"""What each micro-batch counts in the gradient of the whole batch, on one process and on several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from advisor.errors import WorkloadError
from advisor.training.batch.targets import count_labels, count_targets
from advisor.training.batch.tree import IGNORED_TARGET, map_tensors, sample_count
from advisor.training.world import World
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import Reduction

__all__ = ["MicroBatchWeights", "require_one_process", "weighed"]


class MicroBatchWeights:
    """What the micro-batches of a training weigh, and those of the batch that is being computed.

    Args:
        reduction: How the loss of a batch follows from those of its micro-batches, where that was found out.
        sample_dims: Where a batch has its samples.
        count: The workload's own ``count_targets``.
        causal: Whether the loss predicts the next token.
        world: The processes that share a batch.
    """

    def __init__(
        self,
        reduction: Reduction | None,
        sample_dims: SampleDims | None,
        count: Callable[[Any], float | torch.Tensor] | None,
        *,
        causal: bool,
        world: World,
    ) -> None:
        self._reduction = reduction
        self._sample_dims = sample_dims
        self._count = count
        self._causal = causal
        self._world = world
        self._current: list[tuple[Any, float]] = []
        self._unknown = 0

    @property
    def counts_targets(self) -> bool:
        """Whether the workload itself says what its loss averages over."""
        return self._count is not None

    def begin(self, pieces: list[Any]) -> list[Any]:
        """Weigh the micro-batches of the next step; gives those that are to be computed, in their order."""
        self._current, self._unknown = self.of(pieces), 0
        return [piece for piece, _ in self._current]

    def end(self) -> None:
        """Forget them: what comes next is a batch of its own."""
        self._current = []

    def apply(self, loss: torch.Tensor, batch: Any) -> torch.Tensor:
        """The loss times the weight of its micro-batch; outside of a step of several it stays as it is."""
        return loss * self._weight_of(batch) if self._current else loss

    def of(self, pieces: list[Any]) -> list[tuple[Any, float]]:
        """The micro-batches to compute, each with its share in the loss of them all; one without targets has none."""
        reduction = self._reduction or Reduction()
        if reduction.kind == "sum":
            if reduction.needs == "one process":
                require_one_process(self._world)
            # Gradients are averaged over the processes.
            return [(piece, float(self._world.size)) for piece in pieces]
        weights = weighed(pieces, self._targets, self._world, at_least=reduction.at_least, samples=self._samples)
        if reduction.needs == "targets":
            _require_targets(weights, len(pieces))
        elif reduction.needs == "even targets":
            _require_even(weights, self._samples, pieces)
        return weights

    def usual_reduction(self, batch: Any) -> Reduction | None:
        """How the loss is reduced if nobody says so; ``None`` where the workload counts its targets itself."""
        if self._count is not None:
            return None
        if count_labels(batch, causal=self._causal) is None:
            return Reduction()
        return Reduction(targets="labels", ignore_index=IGNORED_TARGET, shifted=self._causal)

    def _weight_of(self, batch: Any) -> float:
        """That of a micro-batch that is being computed; of what a loop has made of one, that of the next in order."""
        for piece, weight in self._current:
            if piece is batch:
                return weight
        self._unknown += 1
        return self._current[min(self._unknown, len(self._current)) - 1][1]

    def _targets(self, piece: Any) -> tuple[float, bool]:
        """What the loss of a micro-batch averages over, and whether it may differ between processes: samples do not."""
        if self._count is not None:
            return float(self._count(piece)), True
        if self._reduction is not None:
            return count_targets(piece, self._reduction, self._sample_dims), bool(self._reduction.targets)
        labels = count_labels(piece, causal=self._causal)
        if labels is not None:
            return float(labels), True
        return float(self._samples(piece)), False

    def _samples(self, piece: Any) -> int:
        return sample_count(piece, self._sample_dims)


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


def _require_targets(weights: Sequence[tuple[Any, float]], pieces: int) -> None:
    """Every micro-batch must have targets, where the loss of one without any was seen not to be weighed by them.

    Raises:
        WorkloadError: One has none.
    """
    without = pieces - sum(1 for _, weight in weights if weight)
    if without:
        raise WorkloadError(
            f"every micro-batch must have a target, because the loss of one without any follows another rule, but "
            f"{without} of {pieces} have none; leave samples without targets out of the batch, or give batches of at "
            "most micro_batch samples"
        )


def _require_even(weights: Sequence[tuple[Any, float]], samples: Callable[[Any], int], pieces: Sequence[Any]) -> None:
    """Every micro-batch must have as many targets for each sample, where the loss is in part a mean over samples.

    Raises:
        WorkloadError: They have not.
    """
    weight_of = {id(piece): weight for piece, weight in weights}
    own, sizes = [weight_of.get(id(piece), 0.0) for piece in pieces], [samples(piece) for piece in pieces]
    if not all(
        math.isclose(weight, size / sum(sizes), rel_tol=1e-6)  # those of all processes, which have as many samples
        for weight, size in zip(own, sizes, strict=True)
    ):
        raise WorkloadError(
            "every micro-batch must have as many targets for each sample, because the loss is in part a mean over "
            f"targets and in part one over samples, but micro-batches of {', '.join(map(str, sizes))} samples have "
            f"{', '.join(f'{100 * weight:.3g} %' for weight in own)} of the targets. Give batches of at most "
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
