"""The batches of a combination in a table: about half of the largest that fits, and the largest."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.search.sizing.batching import choose_batch
from advisor.search.sizing.memory_model import DEFAULT_MARGIN, round_batch
from advisor.trial.outcome import Outcome
from benchmarks.search.curve import PeakCurve
from benchmarks.search.table_lines import Sized, Timed

__all__ = ["first_batch", "next_batch"]

_MOST_TIMED = 4
"""Most batches of one combination to try, including those that do not fit."""


def first_batch(sized: Sized, limit_bytes: int, largest_batch: int) -> int:
    """Half of the batch that the profiling runs predict; 0 if they predict none.

    Args:
        sized: The profiling runs of a combination.
        limit_bytes: The memory limit.
        largest_batch: Largest batch to try.
    """
    forecast = sized.forecast
    if forecast is None:
        return 0
    largest = min(forecast.largest_batch(limit_bytes, margin=0.0), largest_batch)
    batch = choose_batch(largest=largest, fraction=0.5)
    return 0 if batch is None else batch.micro_batch


def next_batch(sized: Sized, timed: Sequence[Timed], limit_bytes: int, largest_batch: int) -> int:
    """The next batch to time: the largest that fits according to all measurements, with a session's margin.

    Args:
        sized: The profiling runs of a combination.
        timed: Its timed lines, at least one batch.
        limit_bytes: The memory limit.
        largest_batch: Largest batch to try.

    Returns:
        0 if no batch larger than the ones that ran is left to be timed.
    """
    lost = [line.batch for line in timed if line.outcome == Outcome.OUT_OF_MEMORY.value]
    if len(timed) == _MOST_TIMED or timed[-1].outcome not in (Outcome.OK.value, Outcome.OUT_OF_MEMORY.value):
        return 0
    below = min(lost, default=largest_batch + 1)
    ran = [line for line in timed if line.outcome == Outcome.OK.value]
    if not ran:
        return round_batch(below // 2)
    peak, usable = PeakCurve(sized, ran), limit_bytes * (1 - DEFAULT_MARGIN)
    largest = next((batch for batch in range(below - 1, 0, -1) if peak.at(batch) <= usable), 0)
    following = round_batch(largest)
    return following if following > max(line.batch for line in ran) else 0
