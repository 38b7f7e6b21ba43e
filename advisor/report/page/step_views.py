"""Memory over a step and where its time goes, for the policies whose step was traced."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.decide.candidate import Candidate
from advisor.predict.roofline import predict_step
from advisor.report.page.figure import Source
from advisor.report.page.pictures import MemoryTimeline, PhaseTime, StepTime
from advisor.report.page.tried import Tried, figure_of_seconds
from advisor.trial.result import PredictResult

__all__ = ["memory_over_step", "time_of_step"]


def memory_over_step(tried: Tried) -> Iterator[MemoryTimeline]:
    """One for each policy that was traced."""
    goal = tried.study.answer.goal
    for candidate, result in _traced(tried):
        timeline, policy = result.timeline, candidate.policy
        if timeline is None:
            continue
        of_passes = ""
        of_devices = f", as the first of {policy.gpu_count} devices makes it" if policy.gpu_count > 1 else ""
        if policy.accumulation_steps > timeline.passes:
            of_passes = f", with {timeline.passes} of its {policy.accumulation_steps} passes"
        yield MemoryTimeline(
            policy=tried.id_of(candidate),
            source=Source.PREDICTED,
            obtained="Predicted: one step was followed on tensors that have shapes and no memory"
            f"{of_devices}{of_passes}. Moments follow each other as operators do, not in equal times.",
            micro_batch=timeline.micro_batch,
            phases=timeline.phases,
            bytes={kind.value: values for kind, values in timeline.live.items()},
            operator=timeline.operator,
            limit_bytes=goal.limit_on(policy.gpu_count),
        )


def time_of_step(tried: Tried) -> Iterator[StepTime]:
    """One for each measured policy whose work was counted, on a device whose rates are known."""
    rates = tried.study.answer.facts.device_rates
    for candidate, result in _traced(tried):
        measured, work = candidate.measurement, result.work
        if measured is None or work is None or rates is None:
            continue
        batch = candidate.policy.global_batch
        step = predict_step(work, batch, rates)
        if step.predicted_seconds <= 0:
            continue
        step = step.scaled(measured.step_seconds / step.predicted_seconds, (batch,))
        at_rates = "rates that were measured here" if step.measured_rates else "published peak rates"
        yield StepTime(
            policy=tried.id_of(candidate),
            seconds=figure_of_seconds(measured),
            source=Source.PREDICTED,
            obtained=f"The measured step, divided by what its operators are predicted to take at {at_rates}.",
            phases=tuple(
                PhaseTime(
                    phase=one.phase.value,
                    seconds=one.predicted_seconds,
                    bound=one.bound.value,
                    seconds_by_bound={bound.value: time for bound, time in one.seconds_by_bound.items() if time > 0},
                )
                for one in step.phases
            ),
            intensity=step.intensity,
        )


def _traced(tried: Tried) -> Iterator[tuple[Candidate, PredictResult]]:
    """Policies with the trace that belongs to them, in the order of the document."""
    traces = {
        (trial.spec.policy.key, tuple(trial.spec.model_size.items())): trial.result
        for trial in tried.study.trials
        if isinstance(trial.result, PredictResult) and (trial.result.timeline or trial.result.work)
    }
    for candidate in tried.entries.values():
        result = traces.pop((candidate.policy.key, tuple(candidate.model_size.items())), None)
        if result is not None:
            yield candidate, result
