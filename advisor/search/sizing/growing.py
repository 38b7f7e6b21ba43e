"""Grow the batch of a search's answer to what its own measured peak leaves room for.

A search chooses batches from forecasts, and rounds them well down. Where part of a step takes the same time whatever
the batch, the few samples more that a winner's measured peak has room for are worth a last trial.
"""

from __future__ import annotations

from advisor.search.sizing.memory_model import MemoryModel, round_batch

__all__ = ["WORTH_GROWING", "grown_batch"]

WORTH_GROWING = 0.005
"""Expected gain in throughput that is worth a trial."""

_DIGITS = 6
"""Binary digits that are kept: a thirty-second of the batch is lost at most."""

_MARGIN = 0.03
"""Share of the limit that stays free beside a measured peak: nothing is left of the forecast's error."""


def grown_batch(model: MemoryModel, limit_bytes: int) -> int:
    """The largest micro-batch below a limit; no multiple of what a search rounds to.

    Args:
        model: Of the winner, corrected by its own trial.
        limit_bytes: The limit.
    """
    return round_batch(model.largest_batch(limit_bytes, margin=_MARGIN, rounded=False), digits=_DIGITS)
