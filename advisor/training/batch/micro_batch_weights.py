"""The weight of each micro-batch in the gradient of the whole batch, on one process or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from advisor.errors import WorkloadError
from advisor.training.batch.targets import count_labels, count_targets
from advisor.training.batch.tree import IGNORED_TARGET, map_tensors, sample_count
from advisor.training.processes.world import World
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import Reduction

__all__ = ["MicroBatchWeights", "require_one_process", "weighed"]


@dataclass(eq=False)
class MicroBatchWeights:
    """Weighs the micro-batches of a training, and keeps the weights of the current batch.

    Attributes:
        reduction: How the loss of a batch follows from those of its micro-batches, if known.
        sample_dims: The dimensions that hold samples.
        count: The workload's own ``count_targets``.
        causal: Whether the loss predicts the next token.
        world: The processes that share a batch.
    """

    reduction: Reduction | None
    sample_dims: SampleDims | None
    count: Callable[[Any], float | torch.Tensor] | None
    causal: bool = field(kw_only=True)
    world: World = field(kw_only=True)

    def __post_init__(self) -> None:
        self._current: list[tuple[Any, float]] = []
        self._unknown = 0

    @property
    def counts_targets(self) -> bool:
        """Whether the workload defines what its loss averages over."""
        return self.count is not None

    def begin(self, micro_batches: list[Any]) -> list[Any]:
        """Weigh the micro-batches of the next step; returns those to compute, in order."""
        self._current, self._unknown = self.of(micro_batches), 0
        return [micro_batch for micro_batch, _ in self._current]

    def begin_in_order(self, micro_batches: list[Any]) -> list[Any]:
        """Weigh the micro-batches of the next step for a loop that goes through all of them in their order.

        Returns:
            For each of them, what is to be computed in its place if it has no target: another one that does not count;
            otherwise ``None``.
        """
        weights = {id(micro_batch): weight for micro_batch, weight in self.of(micro_batches)}
        useful = next(micro_batch for micro_batch in micro_batches if id(micro_batch) in weights)
        instead = [None if id(micro_batch) in weights else _another(useful) for micro_batch in micro_batches]
        self._current = [
            (micro_batch, weights[id(micro_batch)]) if other is None else (other, 0.0)
            for micro_batch, other in zip(micro_batches, instead, strict=True)
        ]
        self._unknown = 0
        return instead

    def replace(self, place: int, *, by: Any) -> None:
        """Let a micro-batch that was weighed be computed in another form, such as on another device."""
        if self._current:
            self._current[place] = (by, self._current[place][1])

    def end(self) -> None:
        """Forget the micro-batches: the next batch stands alone."""
        self._current = []

    def apply(self, loss: torch.Tensor, batch: Any) -> torch.Tensor:
        """The loss times the weight of its micro-batch; unchanged if the step has only one."""
        return loss * self._weight_of(batch) if self._current else loss

    def of(self, micro_batches: list[Any]) -> list[tuple[Any, float]]:
        """The micro-batches to compute, each with its share of the total loss; those without targets are left out."""
        reduction = self.reduction or Reduction()
        if reduction.kind == "sum":
            if reduction.needs == "one process":
                require_one_process(self.world)
            # Gradients are averaged over the processes.
            return [(micro_batch, float(self.world.size)) for micro_batch in micro_batches]
        weights = weighed(micro_batches, self._targets, self.world, at_least=reduction.at_least, samples=self._samples)
        if reduction.needs == "targets":
            _require_targets(weights, len(micro_batches))
        elif reduction.needs == "even targets":
            _require_even(weights, self._samples, micro_batches)
        return weights

    def usual_reduction(self, batch: Any) -> Reduction | None:
        """The default reduction of the loss; ``None`` if the workload counts its own targets."""
        if self.count is not None:
            return None
        if count_labels(batch, causal=self.causal) is None:
            return Reduction()
        return Reduction(targets="labels", ignore_index=IGNORED_TARGET, shifted=self.causal)

    def _weight_of(self, batch: Any) -> float:
        """The weight of the current micro-batch; if the user's loop transformed it, the next weight in order."""
        for micro_batch, weight in self._current:
            if micro_batch is batch:
                return weight
        self._unknown += 1
        return self._current[min(self._unknown, len(self._current)) - 1][1]

    def _targets(self, micro_batch: Any) -> tuple[float, bool]:
        """What the loss of a micro-batch averages over, and whether that may differ between processes."""
        if self.count is not None:
            return float(self.count(micro_batch)), True
        if self.reduction is not None:
            return count_targets(micro_batch, self.reduction, self.sample_dims), bool(self.reduction.targets)
        labels = count_labels(micro_batch, causal=self.causal)
        if labels is not None:
            return float(labels), True
        return float(self._samples(micro_batch)), False

    def _samples(self, micro_batch: Any) -> int:
        return sample_count(micro_batch, self.sample_dims)


def weighed(
    micro_batches: list[Any],
    count: Callable[[Any], tuple[float, bool]],
    world: World,
    *,
    at_least: float = 0.0,
    samples: Callable[[Any], int] | None = None,
) -> list[tuple[Any, float]]:
    """The micro-batches to compute, each with the factor of its loss.

    The factor is the micro-batch's share of all targets (a mean of means would be wrong where padding differs), times
    the number of processes, because gradients are averaged over them.

    Args:
        micro_batches: The micro-batches of this process; all processes have the same number of them.
        count: What the loss of a micro-batch averages over, and whether that may differ between processes.
        world: The processes.
        at_least: The least number of targets that the loss divides by.
        samples: Number of samples of a micro-batch, which is its share if no process has any target.

    Raises:
        WorkloadError: One of the processes has no target in its share; raised in all of them.
    """
    counts = [count(micro_batch) for micro_batch in micro_batches]
    own = sum(targets for targets, _ in counts)
    differs = any(one for _, one in counts)
    total = _total(own, world, at_least) if differs else max(at_least, own * world.size)
    # Without any target, plain training gives NaN, or its loss is something else, such as a penalty.
    if not total:
        sizes = [1 if samples is None else samples(micro_batch) for micro_batch in micro_batches]
        return [(micro_batch, size / sum(sizes)) for micro_batch, size in zip(micro_batches, sizes, strict=True)]
    # A micro-batch without target would be 0/0, and adds nothing to the gradient.
    useful = [
        (micro_batch, max(targets, at_least) * world.size / total)
        for micro_batch, (targets, _) in zip(micro_batches, counts, strict=True)
        if targets or at_least
    ]
    # Processes synchronize in every pass, so all must make the same number: extra passes add nothing.
    idle = len(micro_batches) - len(useful) if world.size > 1 else 0
    return [(_another(useful[0][0]), 0.0) for _ in range(idle)] + useful


def _another(micro_batch: Any) -> Any:
    """The same samples as a distinct object."""
    return map_tensors(micro_batch, lambda tensor: tensor.view_as(tensor))


def _require_targets(weights: Sequence[tuple[Any, float]], count: int) -> None:
    """Require targets in every micro-batch, because the loss of one without any follows another rule."""
    without = count - sum(1 for _, weight in weights if weight)
    if without:
        raise WorkloadError(
            f"every micro-batch must have a target, because the loss of one without any follows another rule, but "
            f"{without} of {count} have none; leave samples without targets out of the batch, or give batches of at "
            "most micro_batch samples"
        )


def _require_even(
    weights: Sequence[tuple[Any, float]], samples: Callable[[Any], int], micro_batches: Sequence[Any]
) -> None:
    """Require equally many targets per sample in every micro-batch, because the loss is partly a mean over samples."""
    weight_of = {id(one): weight for one, weight in weights}
    own, sizes = [weight_of.get(id(one), 0.0) for one in micro_batches], [samples(one) for one in micro_batches]
    if not all(
        math.isclose(weight, size / sum(sizes), rel_tol=1e-6)  # over all processes
        for weight, size in zip(own, sizes, strict=True)
    ):
        raise WorkloadError(
            "every micro-batch must have as many targets for each sample, because the loss is in part a mean over "
            f"targets and in part one over samples, but micro-batches of {', '.join(map(str, sizes))} samples have "
            f"{', '.join(f'{100 * weight:.3g} %' for weight in own)} of the targets. Give batches of at most "
            "micro_batch samples, or make both parts means over the same"
        )


def require_one_process(world: World) -> None:
    """Require a single process, because the loss is a sum divided by a number in the batch.

    Raises:
        WorkloadError: There are several processes.
    """
    if world.size > 1:
        raise WorkloadError(
            "the loss is a sum that is divided by a number in the batch, and with several processes nobody knows "
            "whether that counts the share of one or the batch of all; train on one device, or count in the loss what "
            "the share has, as len(batch[...]) does"
        )


def _total(own: float, world: World, at_least: float) -> float:
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
