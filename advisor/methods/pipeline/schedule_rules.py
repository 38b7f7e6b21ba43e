"""What each schedule of a pipeline needs: stages per rank, their places, and numbers of micro-batches. No torch."""

from __future__ import annotations

__all__ = ["SCHEDULES", "in_flight", "stages_of_rank", "stages_per_rank", "why_not"]

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble")
"""Names of the schedules, the most common first.

``gpipe`` with one micro-batch is naive model parallelism.
"""


def stages_per_rank(schedule: str) -> int:
    """How many stages each rank runs."""
    return 2 if schedule in ("interleaved", "zero_bubble") else 1


def stages_of_rank(schedule: str, rank: int, size: int) -> tuple[int, ...]:
    """Numbers of the stages that a rank runs, in order.

    Interleaved, a rank has every ``size``-th stage. The zero-bubble schedule (ZBV) goes down the ranks and up again, so
    that the first rank has the first and the last stage.

    Args:
        schedule: One of :data:`SCHEDULES`.
        rank: Number of the rank in its pipeline.
        size: Ranks of the pipeline.
    """
    if schedule == "interleaved":
        return rank, rank + size
    if schedule == "zero_bubble":
        return rank, 2 * size - 1 - rank
    return (rank,)


def why_not(schedule: str, *, micro_batches: int, size: int) -> str:
    """Why a schedule is no use for this number of micro-batches; empty if it is.

    Args:
        schedule: One of :data:`SCHEDULES`.
        micro_batches: Micro-batches of an optimizer step.
        size: Ranks of the pipeline.
    """
    if schedule == "1f1b" and micro_batches < size:
        return (
            f"schedule=1f1b needs at least as many micro-batches as stages, but {micro_batches} are fewer than "
            f"{size}; use more accumulation steps, or schedule=gpipe"
        )
    rounds = max(1, micro_batches // size)
    if schedule == "interleaved" and (micro_batches < size or micro_batches % rounds):
        return (
            f"schedule=interleaved needs at least as many micro-batches as ranks, in rounds of equal size, but "
            f"{micro_batches} micro-batches on {size} ranks are not; use a multiple of {size}"
        )
    if schedule == "zero_bubble" and micro_batches < size:
        return (
            f"schedule=zero_bubble needs at least as many micro-batches as ranks, but {micro_batches} are fewer than "
            f"{size}; use more accumulation steps, or schedule=gpipe"
        )
    return ""


def in_flight(schedule: str, stage: int, *, micro_batches: int, size: int) -> int:
    """An upper bound of the micro-batches whose activations a stage keeps at once.

    Args:
        schedule: One of :data:`SCHEDULES`.
        stage: Number of the stage.
        micro_batches: Micro-batches of an optimizer step.
        size: Ranks of the pipeline.
    """
    if schedule == "gpipe":
        return micro_batches
    return min(micro_batches, stages_per_rank(schedule) * size - stage)
