"""What low-rank adapters share in their declarations: when a layer is worth one."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.methods.base import Verdict

__all__ = ["CONVOLUTIONS", "LINEAR_LAYERS", "judge_shapes", "pays"]

LINEAR_LAYERS = ("torch.nn.Linear", "transformers.pytorch_utils.Conv1D")
"""Kinds of layers whose weight is one matrix (``Facts.matrices``)."""

CONVOLUTIONS = ("torch.nn.Conv2d",)
"""Kinds of layers whose weight is a matrix over channels times kernel."""


def pays(shape: tuple[int, int], rank: int) -> bool:
    """Whether two adapters of ``rank`` have fewer elements than a weight of this shape (outputs, inputs)."""
    return rank * sum(shape) < shape[0] * shape[1]


def judge_shapes(shapes: Iterable[tuple[int, int]], rank: int, kinds: str) -> Verdict:
    """Whether any layer is worth adapters of this rank.

    Args:
        shapes: (outputs, inputs) of the layers that could have them.
        rank: Of the adapters.
        kinds: What these layers are called.
    """
    found = set(shapes)
    if not found:
        return Verdict.no(
            f"it adapts {kinds} that have a weight of their own, and the model has none besides its output layer"
        )
    if not any(pays(shape, rank) for shape in found):
        outputs, inputs = max(found, key=lambda shape: shape[0] * shape[1] / sum(shape))
        return Verdict.no(
            f"adapters of rank {rank} would be larger than each of the {kinds} themselves (the best has {inputs} "
            f"inputs and {outputs} outputs); choose a lower rank"
        )
    return Verdict.yes()
