"""Grow the batch of a search's answer to what its own measured peak leaves room for.

A search chooses batches from forecasts, and rounds them well down. Where part of a step takes the same time whatever
the batch, the few samples more that a winner's measured peak has room for are worth a last trial.
"""

from __future__ import annotations

from advisor.search.sizing.memory_model import LARGEST_BATCH, MemoryModel

__all__ = ["WORTH_GROWING", "grown_batch"]

WORTH_GROWING = 0.005
"""Expected gain in throughput that is worth a trial."""

_EIGHT, _MANY = 8, 64
"""Kernels like multiples of eight. From so many samples on a tenth of them is lost at most; below, a sample counts more
than what its number costs."""

_MARGIN = 0.03
"""Share of the limit that stays free beside a measured peak: nothing is left of the forecast's error."""


def grown_batch(model: MemoryModel, limit_bytes: int, *, most: int = LARGEST_BATCH) -> int:
    """The largest micro-batch below a limit; of many samples, a multiple of eight.

    Args:
        model: Of the winner, corrected by its own trial.
        limit_bytes: The limit.
        most: Most samples, whatever the memory.
    """
    largest = min(most, model.largest_batch(limit_bytes, margin=_MARGIN, rounded=False))
    return model.layout.fitted(largest if largest < _MANY else largest // _EIGHT * _EIGHT)
