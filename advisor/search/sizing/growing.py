"""Grow the batch of a search's answer to what its own measured peak leaves room for.

A search chooses batches from forecasts, and rounds them well down. Where part of a step takes the same time whatever
the batch, the few samples more that a winner's measured peak has room for are worth a last trial.
"""

from __future__ import annotations

from advisor.search.propose.standing import JointStanding
from advisor.search.sizing.memory_model import MemoryModel, round_batch

__all__ = ["grown_batch", "is_worth_growing"]

_DIGITS = 6
"""Binary digits that are kept: a thirty-second of the batch is lost at most."""

_WORTH = 0.005
"""Expected gain in throughput that is worth a trial."""


def grown_batch(model: MemoryModel, limit_bytes: int) -> int:
    """The largest micro-batch below a limit.

    Args:
        model: Of the winner, corrected by its own trial.
        limit_bytes: The limit; the model's margin of it stays free.
    """
    return round_batch(model.largest_batch(limit_bytes, rounded=False), digits=_DIGITS)


def is_worth_growing(batch: int, grown: int, standing: JointStanding) -> bool:
    """Whether a larger batch is expected to be faster by enough.

    Args:
        batch: The winner's.
        grown: The larger one.
        standing: What the search's model expects of both, in this order.
    """
    return grown > batch and float(standing.mean[0] - standing.mean[1]) >= _WORTH
