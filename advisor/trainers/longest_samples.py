"""The longest samples of a data set: what a training must have memory for."""

from __future__ import annotations

import dataclasses
import heapq
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from advisor.errors import WorkloadError

__all__ = ["LOOKED_AT", "Longest", "longest_samples", "sample_size"]

LOOKED_AT = 20_000
"""Most samples that are looked at: drawn at random from a larger data set."""
_SECONDS = 30.0
"""No more are looked at after this time: some data sets read and decode a file for each."""


@dataclasses.dataclass(frozen=True)
class Longest:
    """The longest samples, and what they were found among.

    Attributes:
        samples: Longest first.
        size: Numbers in the longest (:func:`sample_size`).
        looked_at: Samples that were looked at.
        total: Samples of the data set.
    """

    samples: list[Any]
    size: int
    looked_at: int
    total: int


def longest_samples(dataset: Any, count: int, *, looked_at: int = LOOKED_AT, seconds: float = _SECONDS) -> Longest:
    """Find the longest samples of a map-style data set.

    Args:
        dataset: Has ``len()`` and ``dataset[i]``.
        count: How many to return; fewer if the data set has fewer.
        looked_at: Look at no more than this number, drawn at random with a fixed seed.
        seconds: Look at no more after this time.

    Raises:
        WorkloadError: The data set is empty, or cannot be indexed.
    """
    total = _length(dataset)
    order: Sequence[int] = range(total)
    if total > looked_at:
        order = random.Random(0).sample(order, looked_at)
    deadline = time.monotonic() + seconds
    kept: list[tuple[int, int, Any]] = []  # The place decides between equally long ones, which need not be comparable.
    seen = 0
    for place in order:
        sample = dataset[place]
        entry = (sample_size(sample), -place, sample)
        if len(kept) < count:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
        seen += 1
        if time.monotonic() > deadline:
            break
    kept.sort(key=lambda entry: entry[:2], reverse=True)
    return Longest(samples=[sample for _, _, sample in kept], size=kept[0][0], looked_at=seen, total=total)


def sample_size(sample: Any) -> int:
    """How many numbers are in a sample: token ids, pixels, characters; in all its parts together."""
    if hasattr(sample, "numel"):
        return int(sample.numel())
    if isinstance(getattr(sample, "size", None), int):  # An array of numpy.
        return int(sample.size)
    if isinstance(sample, str | bytes):
        return len(sample)
    if isinstance(sample, Mapping):
        return sum(sample_size(part) for part in sample.values())
    if isinstance(sample, list | tuple):
        if sample and isinstance(sample[0], int | float):
            return len(sample)
        return sum(sample_size(part) for part in sample)
    if hasattr(sample, "width") and hasattr(sample, "height"):  # An image.
        return int(sample.width) * int(sample.height)
    if dataclasses.is_dataclass(sample):
        return sum(sample_size(part) for part in vars(sample).values())
    return 1


def _length(dataset: Any) -> int:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, Mapping):
        raise WorkloadError(
            "The training data must be a data set with len() and dataset[i], so that its longest samples can be found, "
            f"but it is {type(dataset).__name__}, which is read from beginning to end. Give a data set of some "
            "thousand of its samples, or write a model file with make_batch."
        )
    total = len(dataset)
    if total < 1:
        raise WorkloadError("The training data must have at least one sample, but it is empty.")
    return total
