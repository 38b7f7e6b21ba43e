"""Sentences on where the time of a step goes, and what the winner changed about it."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate, Recommendation
from advisor.hardware.rates import DeviceRates
from advisor.predict.roofline import PredictedStep, predict_step
from advisor.report.why_time import explain_time, time_sentence
from advisor.session.context import StudyContext
from advisor.session.trials.trials import Trials

__all__ = ["with_time_explained"]


def with_time_explained(context: StudyContext, trials: Trials, recommendation: Recommendation) -> Recommendation:
    """Follow a step of the baseline and one of the winner, and add what their work says of their measured times.

    The work of every operator, at the device's measured rates, divides each measured step among its phases and says
    what binds them. Nothing is added where it is unknown: on several devices, for another size of the model, without
    the device's rates, where a step cannot be followed, or where the time is up.
    """
    rates = context.facts.device_rates
    plain, winner = recommendation.baseline, recommendation.winner
    if plain is None or plain.policy.methods or rates is None or not context.budget.may_trace:
        return recommendation
    if winner.policy.gpu_count > 1 or plain.model_size != winner.model_size or winner.model_size:
        return recommendation
    context.progress.stage("following a step to see where its time goes")
    before = _step(plain, rates, trials)
    if not winner.policy.methods:
        return recommendation if before is None else _with(recommendation, (time_sentence(before, "plain training"),))
    after = _step(winner, rates, trials)  # the report shows its memory, whatever is known of its time
    if before is None or after is None:
        return recommendation
    return _with(recommendation, explain_time(before, after, winner.policy.methods))


def _step(candidate: Candidate, rates: DeviceRates, trials: Trials) -> PredictedStep | None:
    """The measured step, divided by what its work is predicted to take."""
    work = trials.count_work(candidate.policy)
    measurement, batch = candidate.measurement, candidate.policy.global_batch
    if work is None or measurement is None:
        return None
    step = predict_step(work, batch, rates)
    return step.scaled(measurement.step_seconds / step.predicted_seconds, (batch,))


def _with(recommendation: Recommendation, sentences: tuple[str, ...]) -> Recommendation:
    return msgspec.structs.replace(recommendation, why=(*recommendation.why, *sentences))
