"""Optuna's own samplers, which can take the place of the model's."""

from __future__ import annotations

import optuna

from advisor.search.propose.proposal import SamplerName

__all__ = ["optuna_sampler"]

_STARTUP_TRIALS = 8
"""Completed trials before Optuna's own model is used; the enqueued seeds count."""


def optuna_sampler(name: SamplerName, seed: int) -> optuna.samplers.BaseSampler:
    """One of them by name, for a study that several workers may share."""
    if name is SamplerName.RANDOM:
        return optuna.samplers.RandomSampler(seed)
    return optuna.samplers.TPESampler(
        multivariate=True, group=True, constant_liar=True, seed=seed, n_startup_trials=_STARTUP_TRIALS
    )
