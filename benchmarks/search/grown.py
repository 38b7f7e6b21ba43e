"""The answer's batch, grown to what its own measured peak leaves room for, as a session does before it answers."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from advisor.search.sizing.growing import grown_batch, is_worth_growing
from advisor.search.study.sampler import Proposer
from benchmarks.search.batches import Batches
from benchmarks.search.problem import Problem, Trial

__all__ = ["Grown", "grown", "reach"]


class Grown(NamedTuple):
    """The answer at the better of two batches.

    Attributes:
        answer: It.
        tried: Trials that this took, 0 or 1.
    """

    answer: Trial
    tried: int


def reach(problem: Problem, batches: Batches, trial: Trial) -> int:
    """The batch that a combination which ran has room for; its own if that is no larger."""
    model = batches.corrected(trial.combination)
    assert model is not None, "it ran"
    largest = min(grown_batch(model, problem.limit_bytes), problem.largest_batch)
    return trial.batch if trial.flushed else max(trial.batch, largest)


def grown(problem: Problem, batches: Batches, proposer: Proposer, answer: Trial, seed: int) -> Grown:
    """Run the answer at the largest batch that it leaves room for; the search's model says which is faster.

    Args:
        problem: The problem.
        batches: Forecasts, corrected by the answer's trial.
        proposer: Has the model.
        answer: What would be answered.
        seed: Seed of the noise.
    """
    batch = reach(problem, batches, answer)
    standing = proposer.joint_standing([(answer.combination, one) for one in (answer.batch, batch)])
    if standing is None or not is_worth_growing(answer.batch, batch, standing):
        return Grown(answer, 0)
    generator = random.Random(f"grown {seed} {answer.combination.label} {batch}")
    larger = problem.run(answer.combination, batch, generator)
    if larger.rate is None:
        return Grown(answer, 1)
    standing = standing.after({1: 1.0}, -math.log(larger.rate), problem.noise)
    return Grown(larger if standing.mean[1] < standing.mean[0] else answer, 1)
