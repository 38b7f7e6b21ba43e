"""An Optuna sampler over combinations of methods that proposes the most promising untried one.

Optuna's samplers choose each parameter from a density or a model of numbers. Here every valid combination is known,
usually a few thousand, so the sampler computes the expected improvement (Jones, Schonlau and Welch, Efficient global
optimization of expensive black-box functions, 1998, section 4.1) of each under the model of
:mod:`advisor.search.propose.cost_model` and takes the largest. What a combination may lead to by what it teaches
(:mod:`advisor.search.propose.exploring`) counts as well, if it is more. Ties go to fewer methods.

Otherwise, once no more than half of the noise is expected, the model has nothing more to say. Every second proposal is
then the most promising one if the model is wrong: it may be overconfident about rarely tried settings, such as a method
seen once, beside another that it does not combine well with.

With two objectives (cost and latency) it improves their weighted product, with another weight for every trial (Knowles,
ParEGO, 2006, section 2): every second time at the corner of the frontier, where a percent of one weighs as much as a
percent of the other, and otherwise somewhere along it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from advisor.search.propose.expectation import Expectation, Expectations, Observation
from advisor.search.propose.exploring import explorers, worth_of_learning
from advisor.search.propose.failures import Failures
from advisor.search.propose.history import observations_of
from advisor.search.propose.pool import Pool
from advisor.search.propose.standing import JointStanding, Standing
from advisor.search.space.explored import Explored
from advisor.search.space.factors import Choice, Factors, Floats, Levels
from advisor.search.space.parameters import Parameters
from advisor.search.space.space import Combination, ResolvedSpace

__all__ = ["ModelSampler"]

_TIE = 0.05
"""Improvements that differ by less than this share are ties."""

_NOTHING = 5e-4
"""Below this expected improvement no trial is worth a failure: combinations that probably work and are about as good as
the best come first, instead of those that would be far better if they worked."""

_LEAST_LEARNING = 1e-5
"""What a trial may lead to, below which none is for what it teaches. Pairs of settings are many, so each is worth
little: with :data:`_NOTHING` three generated problems of four with a pair that pays were not solved any more."""

_WORTH_IT = 0.01
"""An expected improvement that is worth a trial, however noisy one is: the model has the others, too."""

_GOOD = 3
"""Combinations whose neighbours are examined in a space too large to list."""

_ROUNDS = 20
"""Most rounds of adding neighbours of the most promising untried combinations, as long as that finds better ones."""


class ModelSampler(BaseSampler):
    """Proposes the untried point with the largest expected improvement.

    Args:
        space: What may be proposed.
        tried: Points that need no further run; kept up to date by the caller.
        parameters: The space as Optuna's parameters.
        maximize: For each objective, whether larger values are better.
        seed: Seed of draws from large spaces and of the weights of two objectives.
    """

    def __init__(
        self, space: ResolvedSpace, tried: Explored, parameters: Parameters, maximize: Sequence[bool], *, seed: int
    ) -> None:
        self._space = space
        self._factors = Factors(space)
        self._pool = Pool(space, tried, self._factors)
        self._parameters = parameters
        self._maximize = tuple(maximize)
        self._finished: dict[int, Observation | None] = {}
        self._last: tuple[list[Observation], list[float], Expectations] | None = None
        self._random = random.Random(seed)
        self._independent = RandomSampler(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters belong together; what was enqueued needs no sampling."""
        return {} if "fixed_params" in trial.system_attrs else dict(self._parameters.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the most promising point; none if nothing is left to try."""
        if not search_space:
            return {}
        observations = self.observations(study)
        chosen = self._chosen(observations, self._weights(trial.number))
        return {} if chosen is None else self._parameters.of(chosen)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Sample parameters outside the space at random."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Reseed, so that another process draws other numbers."""
        self._random.seed()
        self._independent.reseed_rng()

    def observations(self, study: Study) -> list[Observation]:
        """Observations from the study's trials, including those of other workers."""
        return observations_of(study.get_trials(deepcopy=False), self._parameters, self._maximize, self._finished)

    def expectations(self, observations: Sequence[Observation], weights: Sequence[float] | None = None) -> Expectations:
        """Expectations after some observations; by default all objectives have equal weight."""
        equal = [1 / len(self._maximize)] * len(self._maximize)
        seen, weighing = list(observations), list(equal if weights is None else weights)
        if self._last is None or self._last[0] != seen or self._last[1] != weighing:
            # Stopping, repeating and proposing all ask after the same observations.
            self._last = seen, weighing, Expectations(self._factors, seen, weighing)
        return self._last[2]

    def failing_pairs(self, observations: Sequence[Observation]) -> dict[tuple[str, str], int]:
        """Pairs of settings that failed together and never ran, with whatever losses -> number of combinations."""
        broken = self._factors.levels(one.choice for one in observations if one.failed and not one.unfaithful)
        ran = self._factors.levels(one.choice for one in observations if one.ran or one.unfaithful)
        return Failures(self._factors, broken, ran).pairs

    def standings(self, study: Study, others: Iterable[Choice] = ()) -> dict[str, Standing]:
        """Label -> the model's estimate of each tried combination that may win, and of others.

        One that was not tried is estimated at the batch that it is expected to leave room for. Empty for two
        objectives, and before anything ran.
        """
        observations = [one for one in self.observations(study) if not one.under_way]
        able = {one.choice.combination.label: one.choice for one in observations if one.counts}
        if not able or len(self._maximize) > 1:
            return {}
        able |= {one.combination.label: one for one in others if one.combination.label not in able}
        estimate = self.expectations(observations).standing(self._factors.levels(able.values()))
        return {
            label: Standing(mean=float(mean), deviation=float(deviation))
            for label, mean, deviation in zip(able, estimate.mean, estimate.deviation, strict=True)
        }

    def explorers(
        self, study: Study, leader: Combination, most: int, least: float, allowed: Callable[[Combination], bool]
    ) -> list[Combination]:
        """Combinations to compare with the leader because of what they may teach; none for two objectives."""
        observations = [one for one in self.observations(study) if not one.under_way]
        if len(self._maximize) > 1 or not any(one.counts for one in observations):
            return []
        return explorers(
            self._space,
            self._factors,
            self.expectations(observations),
            leader,
            self._random,
            most=most,
            least=least,
            allowed=allowed,
        )

    def joint_standing(self, study: Study, points: Sequence[tuple[Choice, int]]) -> JointStanding | None:
        """The model's estimate of points at micro-batches, all together; ``None`` before the first measurement."""
        observations = [one for one in self.observations(study) if not one.under_way]
        if not any(one.counts for one in observations):
            return None
        levels = self._factors.levels(choice for choice, _ in points)
        mean, covariance = self.expectations(observations).joint(levels, [batch for _, batch in points])
        return JointStanding(mean=mean, covariance=covariance)

    def largest_improvement(self, study: Study) -> tuple[float, float] | None:
        """The largest expected improvement of an untried point, and the largest by what one teaches.

        Both are shares of the cost; ``None`` if nothing counts. What points teach is zero in the study of another
        sampler, which would try none for that.
        """
        observations = [one for one in self.observations(study) if not one.under_way]
        if not any(one.counts for one in observations):
            return None
        largest = learning = 0.0
        for weights in self._corners:
            expectations = self.expectations(observations, weights)
            _, levels, expectation = self._look(observations, expectations)
            largest = max(largest, float(np.max(expectation.improvement, initial=0.0)))
            if study.sampler is self:
                learning = max(learning, float(np.max(self._learning(observations, expectations, levels), initial=0.0)))
        return largest, learning

    @property
    def _corners(self) -> list[tuple[float, ...]]:
        return [(1.0,)] if len(self._maximize) == 1 else [(1.0, 0.0), (0.5, 0.5), (0.0, 1.0)]

    def _weights(self, number: int) -> tuple[float, ...]:
        if len(self._maximize) == 1:
            return (1.0,)
        share = 0.5 if number % 2 == 0 else self._random.random()
        return (share, 1 - share)

    def _chosen(self, observations: Sequence[Observation], weights: Sequence[float]) -> Choice | None:
        expectations = self.expectations(observations, weights)
        points, levels, expectation = self._look(observations, expectations)
        if not points:
            return None
        improvement = expectation.improvement
        learning = self._learning(observations, expectations, levels)
        if learning.max() > max(improvement.max(), _LEAST_LEARNING):
            improvement = learning
        elif improvement.max() < _in_the_noise(observations) and sum(one.tried for one in observations) % 2:
            improvement = expectation.if_wrong
        elif improvement.max() < _NOTHING:
            improvement = expectation.success * np.exp(expectation.mean.min() - expectation.mean)
        near = np.flatnonzero(improvement >= (1 - _TIE) * improvement.max())
        simplest = min(near, key=lambda one: (np.count_nonzero(levels[one, :-2]), levels[one, -2], -improvement[one]))
        return points[int(simplest)]

    def _learning(self, observations: Sequence[Observation], expectations: Expectations, levels: Levels) -> Floats:
        """What trials of points may lead to by what they teach; zeros for two objectives, and before anything ran."""
        able = self._factors.levels(one.choice for one in observations if one.counts)
        if len(self._maximize) > 1 or not len(able):
            return np.zeros(len(levels))
        leader = able[int(np.argmin(expectations.standing(able).mean))]
        under_way = self._factors.levels(one.choice for one in observations if one.under_way)
        return worth_of_learning(self._factors, expectations, leader, levels, under_way)

    def _look(
        self, observations: Sequence[Observation], expectations: Expectations
    ) -> tuple[list[Choice], Levels, Expectation]:
        """Untried points and their expectations; in a large space, those near the best measured and predicted ones."""
        measured = [one for one in observations if one.counts and one.logs is not None]
        best = sorted(measured, key=lambda one: sum(one.logs or ()))[:_GOOD]
        points, levels = self._pool.points(self._random, [one.choice.combination for one in best])
        expectation = expectations.of(levels)
        if self._pool.is_whole:
            return points, levels, expectation
        known = {(one.combination.label, one.fraction) for one in points}
        looked: set[int] = set()
        for _ in range(_ROUNDS if points else 0):
            promising = [int(one) for one in np.argsort(-expectation.improvement)[:_GOOD] if int(one) not in looked]
            if not promising:
                break
            looked.update(promising)
            beside, _ = self._pool.beside(points[one].combination for one in promising)
            added = [one for one in beside if (one.combination.label, one.fraction) not in known]
            known |= {(one.combination.label, one.fraction) for one in added}
            if not added:
                continue
            more = self._factors.levels(added)
            points, levels = [*points, *added], np.concatenate([levels, more])
            expectation = expectation.joined(expectations.of(more))
        return points, levels, expectation


def _in_the_noise(observations: Sequence[Observation]) -> float:
    """An expected improvement that would not show: half of the difference between repeated measurements, if small."""
    noises = [one.noise for one in observations if one.logs is not None]
    return min(statistics.median(noises) / 2, _WORTH_IT) if noises else 0.0
