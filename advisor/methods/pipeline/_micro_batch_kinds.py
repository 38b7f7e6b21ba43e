"""The shapes of micro-batches, which must agree in a step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from advisor.errors import WorkloadError
from advisor.training.batch.tree import leaves_of

__all__ = ["kind_of_all"]


def kind_of_all(micro_batches: Sequence[Any]) -> Hashable:
    """Shapes and formats of the micro-batches, which must agree.

    Raises:
        WorkloadError: They do not.
    """
    kinds = [_kind(micro_batch) for micro_batch in micro_batches]
    if len(set(kinds)) > 1:
        shapes = sorted({", ".join(f"{path or 'batch'} {list(shape)}" for path, shape, _ in kind) for kind in kinds})
        raise WorkloadError(
            "all micro-batches of a step must have the same shapes in a pipeline, because stages receive in memory of "
            f"a fixed shape, but there are ({') and ('.join(shapes[:3])}); give batches whose number of samples is a "
            "multiple of micro_batch, and pad the samples of a batch to one length"
        )
    return kinds[0]


def _kind(micro_batch: Any) -> tuple[Any, ...]:
    return tuple(
        (leaf.path, leaf.shape, getattr(leaf.value, "dtype", None))
        for leaf in leaves_of(micro_batch)
        if leaf.shape is not None
    )
