"""Memory over a step and where its time goes, for the policies whose step was traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from advisor.decide.candidate import Candidate
from advisor.hardware.rates import DeviceRates
from advisor.measure.measurement import Measurement
from advisor.measure.step_split import PhaseSplit, StepSplit
from advisor.policy.policy import Policy
from advisor.predict.roofline import Bound, PredictedPhase, PredictedStep, predict_step
from advisor.predict.step_work import StepWork
from advisor.report.page.figure import Source
from advisor.report.page.pictures import MemoryTimeline, PhaseTime, StepTime
from advisor.report.page.tried import Tried, figure_of_seconds
from advisor.trial.result import PredictResult, Result, SplitResult

__all__ = ["memory_over_step", "not_divided", "time_of_step"]

_R = TypeVar("_R", bound=Result)

_LINKS = "links and other devices"
_OPERATORS = "compute or memory bandwidth"
"""Of operators whose work is not known."""


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
        step = _predicted(None if trace is None else trace.work, _of_each(candidate.policy), rates)
        split = None if profiled is None else profiled.split
        if candidate.policy.gpu_count > 1:
            if split is not None:
                unknown = "" if step is not None else _why_not_predicted(tried, candidate)
                yield _profiled(name, measured, split, step, unknown)
        elif step is not None:
            yield _divided(name, measured, step)


def _of_each(policy: Policy) -> int:
    """Samples of a step on each device, whose own work was counted."""
    return policy.global_batch // policy.data_degree


def not_divided(tried: Tried, divided: Iterable[StepTime]) -> Iterator[str]:
    """Why the step of the winner, or of the baseline, is not among those that were divided; in sentences."""
    found, there = tried.study.answer.recommendation, {one.policy for one in divided}
    for role, one in (("winner", found.winner), ("baseline", found.baseline)):
        if one is None or one.measurement is None or tried.id_of(one) in there:
            continue
        if role == "baseline" and tried.id_of(one) == tried.id_of(found.winner):
            continue
        why = _why_not_profiled(tried, one) if one.policy.gpu_count > 1 else _why_not_predicted(tried, one)
        yield f"The step of the {role} is not divided: {why}."


def _why_not_predicted(tried: Tried, candidate: Candidate) -> str:
    """Why it is not known what its operators would take."""
    if tried.study.answer.facts.device_rates is None:
        return "the rates of this device were not measured"
    result = _last(tried, PredictResult, candidate)
    if result is None:
        return "no step of it was followed on tensors without memory, as the study had no time left"
    if result.reason:
        return f"its step cannot be followed on tensors without memory ({result.reason})"
    return "the work of its operators could not be counted"


def _why_not_profiled(tried: Tried, candidate: Candidate) -> str:
    result = _last(tried, SplitResult, candidate)
    if result is None:
        return "no steps of it were profiled, as the study had no time left"
    if result.reason:
        return f"profiling its steps ended as {result.outcome.value} ({result.reason})"
    return "torch's profiler saw no communication in its steps, so that nothing can be told apart"


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


def _profiled(name: str, measured: Measurement, split: StepSplit, step: PredictedStep | None, unknown: str) -> StepTime:
    """The step of several devices, as it was profiled on the first; what bounds its operators is predicted.

    Args:
        name: The policy's ID.
        measured: Its measurement.
        split: What the profiler saw.
        step: What its operators are predicted to take, if that is known.
        unknown: Why it is not.
    """
    split = split.scaled(measured.step_seconds)
    phases = [_bounded(one, None if step is None else step.phase(one.phase), unknown) for one in split.phases]
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


def _bounded(one: PhaseSplit, predicted: PredictedPhase | None, unknown: str) -> PhaseTime:
    """A profiled phase without its communication, with what bounds it, or why that cannot be told."""
    seconds = one.seconds - one.exposed_seconds
    bounds: dict[str, float] = {}
    unbound = ""
    if predicted is not None and predicted.predicted_seconds > 0:
        factor = seconds / predicted.predicted_seconds
        bounds = {of.value: time * factor for of, time in predicted.seconds_by_bound.items() if time > 0}
    else:
        unbound = unknown or "the step that was followed has no operator in this phase"
        if one.idle_seconds is not None:
            parts = {Bound.LAUNCH.value: one.idle_seconds, _OPERATORS: seconds - one.idle_seconds}
            bounds = {bound: time for bound, time in parts.items() if time > 0}
    return PhaseTime(
        phase=one.phase.value,
        seconds=seconds,
        bound=max(bounds, key=bounds.__getitem__, default=""),
        seconds_by_bound=bounds,
        unbound=unbound,
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
        result = results.pop(_identity(candidate), None)
        if result is not None:
            found[name] = result
    return found


def _last(tried: Tried, kind: type[_R], candidate: Candidate) -> _R | None:
    """The last result of such a trial of a policy, whatever it says."""
    key = _identity(candidate)
    found = [
        trial.result
        for trial in tried.study.trials
        if isinstance(trial.result, kind) and (trial.spec.policy.key, tuple(trial.spec.model_size.items())) == key
    ]
    return found[-1] if found else None


def _identity(candidate: Candidate) -> tuple[str, tuple[tuple[str, int | float], ...]]:
    return candidate.policy.key, tuple(candidate.model_size.items())
