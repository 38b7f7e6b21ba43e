"""Memory over a step and where its time goes, for the policies whose step was traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from advisor.hardware.rates import DeviceRates
from advisor.measure.measurement import Measurement
from advisor.measure.step_split import StepSplit
from advisor.predict.roofline import PredictedStep, predict_step
from advisor.predict.step_work import StepWork
from advisor.report.page.figure import Source
from advisor.report.page.pictures import MemoryTimeline, PhaseTime, StepTime
from advisor.report.page.tried import Tried, figure_of_seconds
from advisor.trial.result import PredictResult, Result, SplitResult

__all__ = ["memory_over_step", "time_of_step"]

_R = TypeVar("_R", bound=Result)

_LINKS = "links and other devices"


def memory_over_step(tried: Tried) -> Iterator[MemoryTimeline]:
    """One for each policy that was traced."""
    goal = tried.study.answer.goal
    for name, result in _traced(tried).items():
        candidate = tried.entries[name]
        timeline, policy = result.timeline, candidate.policy
        if timeline is None:
            continue
        of_passes = ""
        of_devices = f", as the first of {policy.gpu_count} devices makes it" if policy.gpu_count > 1 else ""
        if policy.accumulation_steps > timeline.passes:
            of_passes = f", with {timeline.passes} of its {policy.accumulation_steps} passes"
        yield MemoryTimeline(
            policy=name,
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
    """One for each measured policy whose work was counted, on a device whose rates are known, or that was profiled."""
    rates = tried.study.answer.facts.device_rates
    traces = _traced(tried)
    splits = _by_policy(tried, SplitResult, lambda result: result.split is not None)
    for name, candidate in tried.entries.items():
        measured = candidate.measurement
        if measured is None:
            continue
        trace, profiled = traces.get(name), splits.get(name)
        step = _predicted(None if trace is None else trace.work, candidate.policy.global_batch, rates)
        split = None if profiled is None else profiled.split
        if candidate.policy.gpu_count > 1:
            if split is not None:
                yield _profiled(name, measured, split, step)
        elif step is not None:
            yield _divided(name, measured, step)


def _predicted(work: StepWork | None, batch: int, rates: DeviceRates | None) -> PredictedStep | None:
    if work is None or rates is None:
        return None
    step = predict_step(work, batch, rates)
    return step if step.predicted_seconds > 0 else None


def _divided(name: str, measured: Measurement, step: PredictedStep) -> StepTime:
    """The step of one device, divided as its operators are predicted to take their time."""
    step = step.scaled(measured.step_seconds / step.predicted_seconds, (step.batch,))
    return StepTime(
        policy=name,
        seconds=figure_of_seconds(measured),
        source=Source.PREDICTED,
        obtained=f"The measured step, divided by what its operators are predicted to take at {_rates_of(step)}.",
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


def _profiled(name: str, measured: Measurement, split: StepSplit, step: PredictedStep | None) -> StepTime:
    """The step of several devices, as it was profiled on the first; what bounds its operators is predicted."""
    split = split.scaled(measured.step_seconds)
    phases = []
    for one in split.phases:
        seconds = one.seconds - one.exposed_seconds
        predicted = None if step is None else step.phase(one.phase)
        bounds = {}
        if predicted is not None and predicted.predicted_seconds > 0:
            factor = seconds / predicted.predicted_seconds
            bounds = {of.value: time * factor for of, time in predicted.seconds_by_bound.items() if time > 0}
        bound = predicted.bound.value if predicted is not None and bounds else ""
        phases.append(PhaseTime(phase=one.phase.value, seconds=seconds, bound=bound, seconds_by_bound=bounds))
    exposed = sum(one.exposed_seconds for one in split.phases)
    phases.append(PhaseTime(phase="communication", seconds=exposed, bound=_LINKS, seconds_by_bound={_LINKS: exposed}))
    rates = "" if step is None else f", and what bounds its operators predicted at {_rates_of(step)}"
    return StepTime(
        policy=name,
        seconds=figure_of_seconds(measured),
        source=Source.MEASURED,
        obtained="Of several devices: the measured step, divided as torch's profiler saw it on the first of them"
        f"{rates}. Communication is what no operator hides, with waiting for the other devices.",
        phases=tuple(phases),
        intensity=0.0 if step is None else step.intensity,
    )


def _rates_of(step: PredictedStep) -> str:
    return "rates that were measured here" if step.measured_rates else "published peak rates"


def _traced(tried: Tried) -> dict[str, PredictResult]:
    """ID -> the trace that belongs to the policy."""
    return _by_policy(tried, PredictResult, lambda result: bool(result.timeline or result.work))


def _by_policy(tried: Tried, kind: type[_R], says: Callable[[_R], bool]) -> dict[str, _R]:
    """ID -> the last result of such a trial that says something; in the order of the document."""
    results = {
        (trial.spec.policy.key, tuple(trial.spec.model_size.items())): trial.result
        for trial in tried.study.trials
        if isinstance(trial.result, kind) and says(trial.result)
    }
    found: dict[str, Any] = {}
    for name, candidate in tried.entries.items():
        result = results.pop((candidate.policy.key, tuple(candidate.model_size.items())), None)
        if result is not None:
            found[name] = result
    return found
