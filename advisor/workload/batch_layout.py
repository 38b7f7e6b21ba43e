"""Where a batch holds its samples: found by making batches of several sizes, never assumed."""

from __future__ import annotations

from typing import Literal

import msgspec

from advisor.text.units import format_count
from advisor.workload.reduction import Reduction

__all__ = ["UNCUT", "BatchLayout", "BatchSizes", "SampleDims"]

UNCUT: Literal["uncut"] = "uncut"
"""In place of a dimension: the leaf grows with the batch, but not by one entry for each sample."""

SampleDims = dict[str, int | Literal["uncut"] | None]
"""Path of a leaf (``"labels"``, ``"0.boxes"``; empty for a batch that is one tensor) -> the dimension along which it
has one entry for each sample, ``None`` where every sample shares the whole of it, or :data:`UNCUT`. A list as long as
the batch is a leaf as well, of one dimension."""


class BatchSizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How batches of as many samples differ in size, as where each is padded to its longest sample.

    Attributes:
        samples: Of the batches that were looked at.
        batches: How many those were.
        path: Of the leaf that differs most from batch to batch; empty for a batch that is one tensor.
        dim: The dimension of it that differs; ``None`` where all numbers in a batch are counted instead, because what
            differs is in a list or an object.
        smallest: The least entries there, or numbers.
        mean: The average.
        largest: The most.
        largest_draws: Numbers of the largest batches in the order in which they were drawn, the largest first: where a
            batch's length is drawn first, the same draw is a large one at any number of samples.
    """

    samples: int
    batches: int
    path: str
    dim: int | None
    smallest: int
    mean: float
    largest: int
    largest_draws: tuple[int, ...]

    @property
    def words(self) -> str:
        """What was seen, and what figures are of."""
        drawn = f"{self.mean:,.0f} on average, in {self.batches} batches of {format_count(self.samples, 'sample')}"
        spread = f"{self.smallest:,} to {self.largest:,}"
        if self.dim is None:
            seen = f"they hold {spread} numbers, {drawn}"
        else:
            what = f"{self.path} has" if self.path else "they have"
            seen = f"{what} {spread} entries in dimension {self.dim}, {drawn}"
        return (
            f"batches of as many samples differ in size: {seen}. Memory is that of the largest that was seen, speed "
            "that of average ones. A larger one may not fit: bound the size in make_batch, or leave room with "
            "--memory-limit"
        )


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
        sizes: How batches of as many samples differ in size; ``None`` if they were not seen to.
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
    sizes: BatchSizes | None = None

    @property
    def sample_dims(self) -> SampleDims | None:
        """What a training must be told; ``None`` where it takes that for granted."""
        return None if self.is_usual else self.dims

    @property
    def why_uncut(self) -> str:
        """Why a batch cannot be cut into micro-batches; empty if it can."""
        return "; ".join(f"{path or 'the batch'}: {reason}" for path, reason in self.uncut_because.items())
