"""Short paired comparisons of each method alone with plain training, as a session makes them before it searches.

They take seconds and no trial: both trainings alternate in one process, at the smaller of the batches at which plain
training was timed. Their results are as noisy here as a trial, although in reality timing in turn is less noisy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec

from advisor.search.space.space import Combination
from benchmarks.search.batches import Batches
from benchmarks.search.problem import Problem, Trial

__all__ = ["Comparison", "comparisons", "is_plain"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison.

    Attributes:
        combination: The method alone.
        rate: Samples per second, from the ratio to plain training.
        attributes: Batches, in the proposer's format.
    """

    combination: Combination
    rate: float
    attributes: dict[str, int]


def is_plain(trial: Trial) -> bool:
    """Whether a trial is one of plain training that succeeded."""
    return not trial.combination.settings and trial.rate is not None


def comparisons(
    problem: Problem, batches: Batches, plain: Trial, seed: int, noise: float | None = None
) -> Iterator[Comparison]:
    """One comparison for each setting that runs on its own at plain training's batch.

    Args:
        problem: The problem.
        batches: Forecasts of what fits.
        plain: The measurement of plain training.
        seed: Seed of the noise.
        noise: Standard deviation of a ratio's log; that of a trial if ``None``.
    """
    noise = problem.noise if noise is None else noise
    generator = random.Random(f"comparisons {seed}")
    assert plain.rate is not None, "plain training ran"
    base = problem.rate(plain.combination, plain.batch)
    for setting in (setting for axis in problem.space.axes for setting in axis.settings):
        combination = Combination((setting,), plain.combination.gpu_count)
        if not problem.space.accepts(combination):
            continue
        largest = batches.largest(combination)
        if largest < plain.batch:
            continue
        rate = problem.rate(combination, plain.batch)
        if rate > 0:
            noisy = rate / base * math.exp(generator.gauss(0.0, noise))
            attributes = {"micro_batch": plain.batch, "largest_batch": largest}
            yield Comparison(combination=combination, rate=plain.rate * noisy, attributes=attributes)
