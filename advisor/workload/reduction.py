"""How the loss of a batch follows from those of its micro-batches."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["THE_BATCH", "Reduction"]

THE_BATCH = "."
"""Path of the targets if the batch is one tensor: padded tokens that are both inputs and targets."""


class Reduction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a loss reduces over its targets, in torch's terms.

    Attributes:
        kind: ``"mean"`` over its targets, or their ``"sum"``.
        targets: Path of the part of a batch that holds them; empty if every sample counts as one, :data:`THE_BATCH` if
            the batch is one tensor. ``*`` matches every index of a list (``"targets.*.boxes"``).
        ignore_index: The value of a target that does not count.
        shifted: Whether the first entry of each sample is no target, as in next-token prediction.
        counted: What of that part is counted: the ``"entries"`` that are not ``ignore_index``, the sum of its
            ``"values"`` (a mask of weights, lengths), or the ``"rows"`` of its tensors (boxes).
        class_weights: The weight of a target by its class; if empty, each counts as one.
        at_least: Fewer targets count as this many, as when a sum is divided by ``count.clamp(min=1)``.
        needs: What the weighting requires of every micro-batch: ``"nothing"``, some ``"targets"``, or ``"even
            targets"``, equally many per sample, because parts of the loss are means over samples. Other batches are
            refused. ``"one process"``: the sum is divided by a number in the batch that grows with it and may count the
            share of a process or the whole batch.
    """

    kind: Literal["mean", "sum"] = "mean"
    targets: str = ""
    ignore_index: int = -100
    shifted: bool = False
    counted: Literal["entries", "values", "rows"] = "entries"
    class_weights: tuple[float, ...] = ()
    at_least: float = 0.0
    needs: Literal["nothing", "targets", "even targets", "one process"] = "nothing"
