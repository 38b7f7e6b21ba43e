"""The strategies that are compared, by name."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence

import optuna
from optuna.exceptions import ExperimentalWarning

from advisor.methods.setting import MethodSetting
from advisor.search.propose.proposal import SamplerName
from advisor.search.space.space import Axis, Combination, ResolvedSpace
from advisor.trial.outcome import Outcome
from benchmarks.search.compared_first import compared_first
from benchmarks.search.deepspeed import deepspeed
from benchmarks.search.guided import guided
from benchmarks.search.pairs import NOISE_OF_PAIR
from benchmarks.search.trials import SpentError, Trials

__all__ = ["STRATEGIES", "Strategy", "random_search", "search", "tpe"]

Strategy = Callable[[Trials, int], None]
"""Spends trials until :class:`SpentError` or until nothing is left; the second argument is its seed."""

_OFF = "off"
_REJECTIONS_IN_A_ROW = 200
"""Consecutive impossible combinations that Optuna may propose before the search ends."""


def search(strategy: Strategy, trials: Trials, seed: int) -> None:
    """Let a strategy spend a budget."""
    try:
        strategy(trials, seed)
    except SpentError:
        return


def random_search(trials: Trials, seed: int) -> None:
    """Uniform combinations (each method's settings and off are equally likely) and log-uniform batches."""
    generator = random.Random(seed)
    space, largest = trials.problem.space, trials.problem.largest_batch
    while True:
        combination = _drawn(space, generator)
        if space.accepts(combination):
            trials.run(combination, int(min(largest, (largest + 1) ** generator.random())))


def tpe(trials: Trials, seed: int) -> None:
    """Optuna's default sampler on the raw parameters, as its user would set it up: the batch is one of them.

    Trials that run out of memory or crash violate a constraint, and so do impossible combinations, which cost no trial.
    """
    problem = trials.problem
    with _quietly():
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        rejected = 0
        while rejected < _REJECTIONS_IN_A_ROW:
            trial = study.ask()
            combination = _suggested(trial, problem.space)
            batch = trial.suggest_int("batch", 1, problem.largest_batch, log=True)
            if not problem.space.accepts(combination):
                rejected += 1
                trial.set_constraint("possible", 1.0)
                study.tell(trial, 0.0)
                continue
            rejected = 0
            (result,) = trials.run(combination, batch)
            trial.set_constraint("possible", 0.0)
            trial.set_constraint("memory", 1.0 if result.outcome is Outcome.OUT_OF_MEMORY else 0.0)
            trial.set_constraint("runs", 1.0 if result.rate is None else 0.0)
            study.tell(trial, result.rate or 0.0)


def _drawn(space: ResolvedSpace, generator: random.Random) -> Combination:
    gpu_count = generator.choice(space.gpu_counts)
    chosen = [generator.choice(_choices(axis, gpu_count)) for axis in space.axes]
    return _combination(chosen, gpu_count)


def _suggested(trial: optuna.trial.Trial, space: ResolvedSpace) -> Combination:
    gpu_count = space.gpu_counts[0]
    if len(space.gpu_counts) > 1:
        gpu_count = trial.suggest_categorical("gpu_count", space.gpu_counts)
    chosen = []
    for axis in space.axes:
        choices = {_OFF if one is None else one.label: one for one in _choices(axis, gpu_count)}
        chosen.append(choices[trial.suggest_categorical(axis.method, list(choices))] if len(choices) > 1 else None)
    return _combination(chosen, gpu_count)


def _choices(axis: Axis, gpu_count: int) -> Sequence[MethodSetting | None]:
    """Off or a setting; distributed methods are off on one device."""
    if gpu_count == 1 and axis.divides:
        return (None,)
    return (None, *axis.settings)


def _combination(chosen: Sequence[MethodSetting | None], gpu_count: int) -> Combination:
    settings = (one for one in chosen if one is not None)
    return Combination(tuple(sorted(settings, key=lambda setting: setting.name)), gpu_count)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence Optuna's log and its warnings about experimental features."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        logger.setLevel(level)


STRATEGIES: dict[str, Strategy] = {
    "random": random_search,
    "optuna default": tpe,
    "deepspeed": deepspeed,
    "deepspeed, every option": functools.partial(deepspeed, leave_out=False),
    "ours, tpe, one batch": functools.partial(guided, sampler=SamplerName.TPE, second_batch=False),
    **{f"ours, {sampler.value}": functools.partial(guided, sampler=sampler) for sampler in SamplerName},
    "ours, model, compared": functools.partial(guided, sampler=SamplerName.MODEL, compare=True),
    "ours, model, compared beside the leader": functools.partial(
        guided, sampler=SamplerName.MODEL, compare=True, beside_leader=True
    ),
    "ours, model, compared in pairs": functools.partial(
        guided, sampler=SamplerName.MODEL, compare=True, in_pairs=NOISE_OF_PAIR
    ),
    "ours, model, compared in pairs, twice the noise": functools.partial(
        guided, sampler=SamplerName.MODEL, compare=True, in_pairs=2 * NOISE_OF_PAIR
    ),
    "ours, model, a dozen compared first": compared_first,
}
"""Name -> strategy."""
