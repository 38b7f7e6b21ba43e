"""How large micro-batches may be, by the samples that there are; the steps of a pipeline have several."""

from __future__ import annotations

from advisor.goal import Goal
from advisor.search.sizing.batching import pipeline_passes
from advisor.search.space.space import Combination

__all__ = ["largest_of_global_batch", "largest_of_samples", "profiled_passes"]


def profiled_passes(combination: Combination, goal: Goal) -> int:
    """Micro-batches of a step in profiling runs: what a pipeline holds depends on how many there are."""
    fixed = goal.global_batch
    return pipeline_passes(combination.mesh, None if fixed is None else fixed // combination.data_degree)


def largest_of_samples(samples: int, combination: Combination, goal: Goal) -> int:
    """The largest micro-batch of profiling runs when the data has so many samples; 0 if it has too few."""
    return samples // (combination.data_degree * profiled_passes(combination, goal))


def largest_of_global_batch(combination: Combination, goal: Goal) -> int | None:
    """The largest micro-batch that a fixed global batch allows; ``None`` if it is free."""
    if goal.global_batch is None:
        return None
    return goal.global_batch // combination.data_degree // profiled_passes(combination, goal)
