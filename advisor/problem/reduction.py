"""How the loss of a batch follows from those of its micro-batches."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Reduction"]


class Reduction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a loss does with its targets, in torch's words.

    Attributes:
        kind: ``"mean"`` over its targets, or their ``"sum"``.
        targets: Path of the part of a batch that holds them; empty where every sample counts as one.
        ignore_index: The value of a target that does not count.
        shifted: Whether the first entry of each sample is no target, since the next token is predicted.
    """

    kind: Literal["mean", "sum"] = "mean"
    targets: str = ""
    ignore_index: int = -100
    shifted: bool = False
