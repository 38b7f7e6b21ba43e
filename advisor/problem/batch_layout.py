"""Where a batch holds its samples: found by making batches of several sizes, never assumed."""

from __future__ import annotations

from typing import Literal

import msgspec

from advisor.problem.reduction import Reduction

__all__ = ["UNCUT", "BatchLayout", "SampleDims"]

UNCUT: Literal["uncut"] = "uncut"
"""In place of a dimension: the leaf grows with the batch, but not by one entry for each sample."""

SampleDims = dict[str, int | Literal["uncut"] | None]
"""Path of a leaf (``"labels"``, ``"0.boxes"``; empty for a batch that is one tensor) -> the dimension along which it
has one entry for each sample, ``None`` where every sample shares the whole of it, or :data:`UNCUT`. A list as long as
the batch is a leaf as well, of one dimension."""


class BatchLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a workload's batches hold their samples.

    Attributes:
        dims: Of every leaf.
        counted_by: Path of the leaf whose size tells how many samples there are.
        counted_dim: Along this dimension of it.
        per_sample: Entries there for each sample.
        extra: Entries there beyond those (one, where offsets begin at 0 and end behind the last sample).
        uncut_because: Path of a leaf that cannot be cut -> why.
        is_usual: Whether that is what a training takes for granted of such a batch.
        reduction: How the loss of a batch follows from those of its micro-batches, if not as a training takes it to.
        changes_when_split: Why training on micro-batches is another training than on whole batches; empty if it was not
            seen to be.
        most_samples: The most that ``make_batch`` was seen to return, where it returned fewer than it was asked for.
    """

    dims: SampleDims
    counted_by: str
    counted_dim: int = 0
    per_sample: int = 1
    extra: int = 0
    uncut_because: dict[str, str] = {}
    is_usual: bool = True
    reduction: Reduction | None = None
    changes_when_split: str = ""
    most_samples: int | None = None

    @property
    def sample_dims(self) -> SampleDims | None:
        """What a training must be told; ``None`` where it takes that for granted."""
        return None if self.is_usual else self.dims

    @property
    def why_uncut(self) -> str:
        """Why a batch cannot be cut into micro-batches; empty if it can."""
        return "; ".join(f"{path or 'the batch'}: {reason}" for path, reason in self.uncut_because.items())
