"""Sentences on where the time of a step goes, and what the winner changed about it."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate, Recommendation
from advisor.hardware.rates import DeviceRates
from advisor.measure.step_split import StepSplit
from advisor.methods.compose import starts_slowly
from advisor.predict.roofline import PredictedStep, predict_step
from advisor.report.why_time import communication_sentence, explain_time, time_sentence
from advisor.session.context import StudyContext
from advisor.session.trials.trials import Trials

__all__ = ["with_time_explained"]


def with_time_explained(context: StudyContext, trials: Trials, recommendation: Recommendation) -> Recommendation:
    """Follow a step of the baseline and one of the winner, and add what their work says of their measured times.

    The work of every operator, at the device's measured rates, divides each measured step among its phases and says
    what binds them. No sentence is added where it is unknown: for another size of the model, or where a step cannot be
    followed. The traces are stored all the same: the report shows their memory. Nothing is followed without the
    device's rates, or where the time is up.

    On several devices operators are not all of a step: some steps are profiled, and the sentence is on communication.
    """
    plain, winner, rates = recommendation.baseline, recommendation.winner, context.facts.device_rates
    if plain is None or not context.budget.may_trace:
        return recommendation
    context.progress.stage("following a step to see where its time goes")
    if winner.policy.gpu_count > 1 or plain.policy.gpu_count > 1:
        recommendation = _with_communication(context, trials, recommendation)
    if rates is None or not context.budget.may_trace:
        return recommendation
    steps = {one.policy.key: _step(one, rates, trials) for one in (plain, winner)}
    before, after = steps[plain.policy.key], steps[winner.policy.key]
    alike = winner.policy.gpu_count == plain.policy.gpu_count == 1 and not winner.model_size and not plain.model_size
    if before is None or after is None or not alike or plain.policy.methods:
        return recommendation
    if not winner.policy.methods:
        return _with(recommendation, (time_sentence(before, "plain training"),))
    return _with(recommendation, explain_time(before, after, winner.policy.methods))


def _with_communication(context: StudyContext, trials: Trials, recommendation: Recommendation) -> Recommendation:
    """Profile some steps of winner and baseline on several devices, and say what of them is communication."""
    splits: dict[str, StepSplit] = {}
    limits = context.budget.limits
    for name, one in (("baseline", recommendation.baseline), ("winner", recommendation.winner)):
        if one is None or one.policy.gpu_count == 1 or one.measurement is None or not context.budget.may_trace:
            continue
        at_size = trials.at_size(one.model_size) if one.model_size else trials
        slow_start = starts_slowly(one.policy.methods)
        limit_seconds = limits.hard_limit_seconds(one.measurement.step_seconds, slow_start=slow_start)
        result = at_size.split(one.policy, hard_limit_seconds=limit_seconds)
        if result.split is not None:
            splits[name] = result.split
    if "winner" not in splits:
        return recommendation
    same = recommendation.baseline == recommendation.winner
    baseline = None if same else splits.get("baseline")
    return _with(
        recommendation, (communication_sentence(recommendation.winner.policy.gpu_count, splits["winner"], baseline),)
    )


def _step(candidate: Candidate, rates: DeviceRates, trials: Trials) -> PredictedStep | None:
    """The measured step, divided by what its work is predicted to take."""
    at_size = trials.at_size(candidate.model_size) if candidate.model_size else trials
    work = at_size.count_work(candidate.policy)
    measurement, batch = candidate.measurement, candidate.policy.global_batch
    if work is None or measurement is None:
        return None
    step = predict_step(work, batch, rates)
    return step.scaled(measurement.step_seconds / step.predicted_seconds, (batch,))


def _with(recommendation: Recommendation, sentences: tuple[str, ...]) -> Recommendation:
    return msgspec.structs.replace(recommendation, why=(*recommendation.why, *sentences))
