"""Where a batch holds its samples, found by making batches of several sizes."""

from __future__ import annotations

from typing import Literal

import msgspec

from advisor.text.units import format_count
from advisor.workload.reduction import Reduction

__all__ = ["ANY_SIZE", "UNCUT", "BatchLayout", "BatchSizes", "SampleDims"]

UNCUT: Literal["uncut"] = "uncut"
"""In place of a dimension: the leaf grows with the batch, but not by one entry per sample."""

SampleDims = dict[str, int | Literal["uncut"] | None]
"""Path of a leaf (``"labels"``, ``"0.boxes"``; empty for a batch that is one tensor) -> the dimension along which it
has one entry per sample, ``None`` if all samples share it, or :data:`UNCUT`. A list as long as the batch is also a
leaf, of one dimension."""


class BatchSizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How batches with the same number of samples differ in size, as with padding to the longest sample.

    Attributes:
        samples: Samples in each of the batches seen.
        batches: Number of batches seen.
        path: Path of the leaf that varies most; empty for a batch that is one tensor.
        dim: Its dimension that varies; ``None`` if all numbers in a batch are counted instead, because the variation is
            in a list or an object.
        smallest: Fewest entries there, or numbers.
        mean: Average.
        largest: Most.
        largest_draws: Draw numbers of the largest batches, the largest first: if a batch's length is drawn first, the
            same draw is large at any number of samples.
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
        """The sizes seen, and which of them memory and speed refer to."""
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
    """The layout of a workload's batches, and how they can be split.

    Attributes:
        dims: Sample dimension of every leaf.
        counted_by: Path of the leaf whose size gives the number of samples.
        counted_dim: Its dimension that is counted.
        per_sample: Entries there per sample.
        extra: Additional entries there (one for offsets from 0 to the end of the last sample).
        uncut_because: Path of a leaf that cannot be split -> why.
        is_usual: Whether this is the default layout for such a batch.
        reduction: How the loss of a batch follows from those of its micro-batches, if not as by default.
        changes_when_split: Why training on micro-batches differs from training on whole batches; empty if no difference
            was seen.
        most_samples: The most samples that ``make_batch`` returned, if it ever returned fewer than requested.
        sizes: How batches with the same number of samples differ in size; ``None`` if no difference was seen.
        least_samples: The fewest samples of a batch that can be made and trained on, if two cannot.
        multiple: Batches have a multiple of so many samples; others cannot be made or trained on.
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
    least_samples: int = 1
    multiple: int = 1

    def fitted(self, samples: int) -> int:
        """The most samples of a batch, up to so many; 0 if that is too few.

        Example:
            >>> layout = BatchLayout(dims={}, counted_by="", least_samples=8, multiple=4)
            >>> [layout.fitted(samples) for samples in (7, 8, 15, 16)]
            [0, 8, 12, 16]
        """
        fitted = samples // self.multiple * self.multiple
        return fitted if fitted >= self.least_samples else 0

    @property
    def takes_any(self) -> bool:
        """Whether a batch may have any number of samples."""
        return self.least_samples == self.multiple == 1

    @property
    def allowed(self) -> str:
        """The batches that there may be, in words."""
        if self.multiple == 1:
            return f"batches of {self.least_samples} samples or more"
        least = f" from {self.least_samples} on" if self.least_samples > self.multiple else ""
        return f"batches of a multiple of {self.multiple} samples{least}"

    @property
    def sample_dims(self) -> SampleDims | None:
        """The dimensions to pass to a training; ``None`` if the default is right."""
        return None if self.is_usual else self.dims

    @property
    def why_uncut(self) -> str:
        """Why a batch cannot be split into micro-batches; empty if it can."""
        return "; ".join(f"{path or 'the batch'}: {reason}" for path, reason in self.uncut_because.items())


ANY_SIZE = BatchLayout(dims={}, counted_by="")
"""Of batches that may have any number of samples."""
