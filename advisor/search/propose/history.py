"""Read observations from an Optuna study's trials, and the attributes written there for later processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from optuna.trial import FrozenTrial, TrialState

from advisor.search.propose.expectation import Observation
from advisor.search.propose.room_model import MemoryShares
from advisor.search.space.parameters import Parameters

__all__ = [
    "BESIDE",
    "CONFLICT",
    "DUPLICATE",
    "EXCLUDED",
    "LARGEST_BATCH",
    "LEARNED",
    "MEMORY",
    "MEMORY_FIXED",
    "MEMORY_PER_SAMPLE",
    "MICRO_BATCH",
    "NOISE",
    "RECIPE",
    "RECORD",
    "RULES_OUT",
    "TRY_AGAIN",
    "WITHOUT_VALUE",
    "is_of_its_own",
    "observations_of",
]

BESIDE = "in_turn_with"
"""Attribute: the parameters of the combination that a measurement alternated with, its micro-batch and the ratio."""

CONFLICT = "conflict"
"""Attribute, and constraint, of a trial whose settings exclude each other."""

DUPLICATE = "duplicate_of"
"""Attribute: number of the trial that tried the same, -1 where there is none."""

RECORD = "record"
"""Attribute: a worker's result, for the others."""

EXCLUDED = "combination_excluded"
"""Attribute: the outcome holds for every share of the batch."""

NOISE = "noise"
"""Attribute: relative difference between repetitions."""

RECIPE = "recipe"
"""Attribute: name of the recipe that was enqueued."""

TRY_AGAIN = "ran_out_of_time"
"""Attribute: a continued study may propose it again."""

WITHOUT_VALUE = "without_value"
"""Attribute: Optuna was told the worst value so far, because there was none."""

MICRO_BATCH = "micro_batch"
"""Attribute: micro-batch of the measurement."""

LARGEST_BATCH = "largest_batch"
"""Attribute: the largest micro-batch that fits, if different."""

MEMORY_FIXED = "memory_fixed"
"""Attribute: what the combination takes whatever the batch, as a share of the limit."""

MEMORY_PER_SAMPLE = "memory_per_sample"
"""Attribute: what each sample adds to that."""

LEARNED = "learned_without_a_trial"
"""Attribute: the measurement is not a trial of the point, which counts as untried."""

RULES_OUT = "may_not_win_after_all"
"""Attribute: what was told of the combination before was a forecast, and it may not win."""

MEMORY = "memory"
"""Constraint: peak / limit - 1."""

_NO_FAILURES = frozenset({MEMORY, "speed", "floor"})
"""Constraints that a working combination violates by being too large or too slow."""

_OF_LOSSES = frozenset({"fidelity", "loss_drift"})
"""Constraints that a combination violates by running to its end with other losses than plain training."""

_LEAST_MEMORY = -0.9
"""Peaks below a tenth of the limit count as a tenth."""

_LARGEST = 2.0**63

_DEFAULT_NOISE = 0.02
"""Relative noise of a measurement if none is stated."""


def is_of_its_own(trial: FrozenTrial) -> bool:
    """Whether a trial was run, not answered from another trial or from the space."""
    return not trial.user_attrs.keys() & {DUPLICATE, CONFLICT}


def observations_of(
    trials: Iterable[FrozenTrial],
    parameters: Parameters,
    maximize: Sequence[bool],
    finished: dict[int, Observation | None],
) -> list[Observation]:
    """Observations of the points of a space, ignoring trials that failed in Optuna's sense.

    Args:
        trials: The study's trials.
        parameters: The space's parameters.
        maximize: For each objective, whether larger values are better.
        finished: Cache of finished trials' observations by number; new ones are added.
    """
    found: list[Observation] = []
    for trial in trials:
        observation = finished.get(trial.number) or _said(trial, parameters, maximize)
        if trial.state.is_finished():
            finished[trial.number] = observation
        if observation is None:
            continue
        if trial.user_attrs.get(RULES_OUT):
            found = [_ruled_out(one, observation) for one in found]
        found.append(observation)
    return found


def _ruled_out(one: Observation, by: Observation) -> Observation:
    """An earlier observation: if it is of the same combination, it neither is the answer nor clears what fails."""
    if one.choice.combination != by.choice.combination:
        return one
    failed = one.failed or by.failed
    unfaithful = failed and all(some.unfaithful for some in (one, by) if some.failed)
    return msgspec.structs.replace(one, tried=False, failed=failed, unfaithful=unfaithful)


def _said(trial: FrozenTrial, parameters: Parameters, maximize: Sequence[bool]) -> Observation | None:
    """The observation of a trial, if any."""
    if not is_of_its_own(trial) or not parameters.are_complete(trial.params):
        return None
    if trial.state is TrialState.RUNNING:
        return Observation(choice=parameters.choice_of(trial.params), under_way=True)
    return _observation(trial, parameters, maximize) if trial.state is TrialState.COMPLETE else None


def _observation(trial: FrozenTrial, parameters: Parameters, maximize: Sequence[bool]) -> Observation:
    told = not trial.user_attrs.get(WITHOUT_VALUE) and all(0 < value < math.inf for value in trial.values)
    logs = tuple(
        -math.log(value) if larger else math.log(value)
        for value, larger in zip(trial.values if told else (), maximize, strict=told)
    )
    beside = trial.user_attrs.get(BESIDE)
    if beside is not None and logs:
        logs = (-math.log(beside["ratio"]) if maximize[0] else math.log(beside["ratio"]),)
    violated = {name for name, amount in trial.constraints.items() if amount > 0}
    failures = violated - _NO_FAILURES
    memory = trial.constraints.get(MEMORY)
    return Observation(
        choice=parameters.choice_of(trial.params),
        logs=logs if told else None,
        noise=_above_zero(trial, NOISE) or _DEFAULT_NOISE,
        failed=bool(failures) and not trial.user_attrs.get(TRY_AGAIN),
        unfaithful=bool(failures) and failures <= _OF_LOSSES and not trial.user_attrs.get(TRY_AGAIN),
        tried=not trial.user_attrs.get(LEARNED),
        batch=_count(trial, MICRO_BATCH),
        largest_batch=_count(trial, LARGEST_BATCH),
        beside=None if beside is None else parameters.choice_of(beside["parameters"]),
        beside_batch=None if beside is None else beside["micro_batch"],
        shares=_shares(trial),
        memory=None if memory is None or not memory < math.inf else math.log1p(max(memory, _LEAST_MEMORY)),
    )


def _above_zero(trial: FrozenTrial, attribute: str) -> float | None:
    """A positive number that a worker wrote; ``None`` if missing or invalid."""
    value = trial.user_attrs.get(attribute)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < _LARGEST else None


def _shares(trial: FrozenTrial) -> MemoryShares | None:
    fixed, per_sample = (_above_zero(trial, name) for name in (MEMORY_FIXED, MEMORY_PER_SAMPLE))
    return None if fixed is None or per_sample is None else MemoryShares(fixed, per_sample)


def _count(trial: FrozenTrial, attribute: str) -> int | None:
    value = _above_zero(trial, attribute)
    return int(value) if value is not None and value == int(value) else None
