"""How the loss of a batch follows from those of its micro-batches."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["THE_BATCH", "Reduction"]

THE_BATCH = "."
"""Path of the targets where the batch is one tensor: padded tokens that are inputs and targets in one."""


class Reduction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a loss does with its targets, in torch's words.

    Attributes:
        kind: ``"mean"`` over its targets, or their ``"sum"``.
        targets: Path of the part of a batch that holds them; empty where every sample counts as one,
            :data:`THE_BATCH` where the batch is one tensor. ``*`` stands for every index of a list
            (``"targets.*.boxes"``).
        ignore_index: The value of a target that does not count.
        shifted: Whether the first entry of each sample is no target, since the next token is predicted.
        counted: What of that part is counted: the ``"entries"`` that are not ``ignore_index``, the sum of its
            ``"values"`` (a mask of weights, lengths), or the ``"rows"`` of its tensors (boxes).
        class_weights: What a target counts by its class, where they differ; else each counts as one.
        at_least: Fewer targets than this count as that many, as where a sum is divided by ``count.clamp(min=1)``.
        needs: What every micro-batch must have for its loss to be weighed: ``"nothing"``, some ``"targets"``, or
            ``"even targets"``, as many for each sample, because parts of the loss are means over samples. Batches of
            which one has not are refused. ``"one process"``: the sum is divided by a number in the batch that grows
            with it, of which nobody knows whether it counts the share of a process or the batch of them all.
    """

    kind: Literal["mean", "sum"] = "mean"
    targets: str = ""
    ignore_index: int = -100
    shifted: bool = False
    counted: Literal["entries", "values", "rows"] = "entries"
    class_weights: tuple[float, ...] = ()
    at_least: float = 0.0
    needs: Literal["nothing", "targets", "even targets", "one process"] = "nothing"
