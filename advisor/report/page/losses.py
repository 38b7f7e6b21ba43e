"""Losses and first gradients of candidates beside those of the reference run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from advisor.decide.candidate import Candidate
from advisor.decide.guard import observed_class
from advisor.measure.fidelity import FidelityRecord
from advisor.report.comparison import comparison_sentence
from advisor.report.page.pictures import Comparison
from advisor.report.page.tried import Tried
from advisor.search.space.space import Combination
from advisor.trial.result import FidelityResult
from advisor.trial.spec import FidelityTrial

__all__ = ["comparisons"]


def comparisons(tried: Tried) -> Iterator[Comparison]:
    """One for each combination whose training was compared."""
    runs = {
        trial.result.key: (trial.spec, trial.result.fidelity)
        for trial in tried.study.trials
        if isinstance(trial.spec, FidelityTrial)
        and isinstance(trial.result, FidelityResult)
        and trial.result.fidelity is not None
    }
    chance = {
        _reference_of(spec): record.losses
        for spec, record in runs.values()
        if spec.other_chance and _reference_of(spec)
    }
    for spec, record in runs.values():
        reference, name = _reference_of(spec), tried.combination_named(spec)
        if spec.other_chance or not name or reference not in runs:
            continue
        candidates = tried.combinations[name]
        judged = next((one for one in candidates if one.guard is not None), candidates[0])
        yield _comparison(tried, name, judged, spec, record, runs[reference], chance.get(reference, ()))


def _reference_of(spec: FidelityTrial) -> str:
    """The key of the run whose gradient it was compared with."""
    return PurePath(spec.reference_gradient).parent.name if spec.reference_gradient else ""


def _comparison(
    tried: Tried,
    name: str,
    judged: Candidate,
    spec: FidelityTrial,
    record: FidelityRecord,
    reference: tuple[FidelityTrial, FidelityRecord],
    chance: tuple[float, ...],
) -> Comparison:
    exact_spec, exact = reference
    gradient, guard = record.gradient, judged.guard
    observed = None if guard is None else observed_class(judged.fidelity, guard)
    return Comparison(
        combination=name,
        name=Combination.of(spec.policy).words,
        policies=tuple(tried.id_of(one) for one in tried.combinations[name]),
        micro_batch=spec.policy.micro_batch,
        reference_name=Combination.of(exact_spec.policy).words,
        reference=exact.losses,
        losses=record.losses,
        chance=chance,
        distinct_batches=exact.distinct_batches,
        gradient_error=None if gradient is None else gradient.error,
        gradient_cosine=None if gradient is None else gradient.cosine,
        gradient_norm_ratio=None if gradient is None else gradient.norm_ratio,
        gradient_reason=record.gradient_reason,
        loss_drift=None if guard is None else guard.loss_drift,
        declared=judged.fidelity.value,
        observed="" if guard is None else "broken" if observed is None else observed.value,
        verdict=comparison_sentence(judged),
    )
