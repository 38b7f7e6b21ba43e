"""How large micro-batches may be, by the samples that there are; the steps of a pipeline have several."""

from __future__ import annotations

from advisor.goal import Goal
from advisor.search.sizing.batching import pipeline_passes
from advisor.search.space.space import Combination
from advisor.workload.facts import Facts

__all__ = ["largest_of_global_batch", "largest_of_samples", "profiled_passes", "usual_batch"]

_USUAL_SEQUENCES = 8
"""Default batch for text: that of transformers' TrainingArguments."""

_USUAL_SAMPLES = 32
"""Default batch for anything else: that of most published examples on one device."""


def usual_batch(facts: Facts) -> int:
    """The user's own batch, or the one that is taken where none is stated."""
    if facts.default_batch is not None:
        return facts.default_batch
    usual = _USUAL_SAMPLES if facts.tokens_per_sample is None else _USUAL_SEQUENCES
    return facts.batch_layout.fitted(usual) or facts.batch_layout.least_samples


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
