"""The answer's batch, grown to what its own measured peak leaves room for, as a session does before it answers."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from advisor.search.sizing.growing import WORTH_GROWING, grown_batch
from advisor.search.study.sampler import Proposer
from benchmarks.search.batches import Batches
from benchmarks.search.problem import Problem, Trial
from benchmarks.search.trials import Trials

__all__ = ["Grown", "grown", "reach", "settle"]


class Grown(NamedTuple):
    """The answer at the better of two batches.

    Attributes:
        answer: It.
        tried: Trials that this took, 0 or 1.
    """

    answer: Trial
    tried: int


def reach(problem: Problem, batches: Batches, trial: Trial) -> int:
    """The batch that a combination which ran has room for, at least one; its own if larger and nothing was flushed."""
    model = batches.corrected(trial.combination)
    assert model is not None, "it ran"
    largest = grown_batch(model, problem.limit_bytes, most=problem.largest_batch)
    return max(1, largest) if trial.flushed else max(trial.batch, largest)


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
    if standing is None or batch == answer.batch:
        return Grown(answer, 0)
    if not answer.flushed and standing.mean[0] - standing.mean[1] < WORTH_GROWING:
        return Grown(answer, 0)
    generator = random.Random(f"grown {seed} {answer.combination.label} {batch}")
    larger = problem.run(answer.combination, batch, generator)
    if larger.rate is None or larger.flushed:
        return Grown(answer, 1)
    standing = standing.after({1: 1.0}, -math.log(larger.rate), problem.noise)
    return Grown(larger if standing.mean[1] < standing.mean[0] else answer, 1)


def settle(trials: Trials, batches: Batches, proposer: Proposer, seed: int) -> None:
    """State the answer that a strategy which repeats lucky-looking leaders would give now."""
    standings = proposer.standings()
    if not standings:
        return
    answer, repeated = trials.settled(standings)
    if answer is not None:
        found = grown(trials.problem, batches, proposer, answer, seed)
        trials.settle(found.answer, repeated=repeated + found.tried, compared=0)
