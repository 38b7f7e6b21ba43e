"""Tell a study what is known of a combination from something other than a trial that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optuna

from advisor.search.propose.history import BESIDE, LEARNED, NOISE, RULES_OUT, TRY_AGAIN, WITHOUT_VALUE
from advisor.search.propose.proposal import Attribute, InTurn
from advisor.search.space.factors import Choice
from advisor.search.space.parameters import Parameters
from advisor.search.study.rejected import worst_values

__all__ = ["tell_measured", "tell_ruled_out"]


def tell_measured(
    study: optuna.Study,
    parameters: Parameters,
    choice: Choice,
    values: Sequence[float],
    attributes: Mapping[str, Attribute],
    *,
    noise: float,
    beside: InTurn | None = None,
) -> None:
    """Add a measurement of a choice, or its ratio to what it alternated with."""
    remarks: dict[str, object] = {**attributes, NOISE: noise}
    if beside is not None:
        of = parameters.of(Choice(beside.combination, choice.fraction))
        remarks[BESIDE] = {"parameters": of, "micro_batch": beside.micro_batch, "ratio": beside.ratio}
    _add(study, parameters, choice, values, remarks, {})


def tell_ruled_out(
    study: optuna.Study,
    parameters: Parameters,
    choice: Choice,
    violated: str,
    attributes: Mapping[str, Attribute],
    *,
    by_chance: bool,
) -> None:
    """Add that a choice of which a forecast was told violates a constraint, so that it may not win."""
    remarks: dict[str, object] = {**attributes, RULES_OUT: True, WITHOUT_VALUE: True}
    if by_chance:
        remarks[TRY_AGAIN] = True
    _add(study, parameters, choice, worst_values(study), remarks, {violated: 1.0})


def _add(
    study: optuna.Study,
    parameters: Parameters,
    choice: Choice,
    values: Sequence[float],
    remarks: Mapping[str, object],
    constraints: Mapping[str, float],
) -> None:
    study.add_trial(
        optuna.trial.create_trial(
            params=parameters.of(choice),
            distributions=dict(parameters.distributions),
            values=values,
            user_attrs={**remarks, LEARNED: True},
            constraints=dict(constraints),
        )
    )
