"""The first two trials of a study: the probe, and the parameter count of every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import advisor.errors
from advisor.errors import NothingMeasuredError, WorkloadError
from advisor.hardware.hardware import Hardware
from advisor.policy.policy import Policy
from advisor.session.budget import TimeBudget
from advisor.session.request import TuneRequest
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ProbeResult, Result
from advisor.trial.spec import CountTrial, ProbeTrial, Trial
from advisor.workload.batch_layout import ANY_SIZE, BatchLayout
from advisor.workload.facts import Facts
from advisor.workload.sizes import SizeCounts

__all__ = ["count_parameters", "first_batch", "probe"]

_S = TypeVar("_S", bound=Trial[Any])

_FIRST_BATCH = 2
"""First micro-batch of every sizing: normalization over a batch of one sample is degenerate or an error."""

_LINES_OF_CRASH = 80
"""Lines of a log: a crashed process's stack begins with the user's frames; this package's are left out."""

_LINES = 20
"""Last lines shown of a failed probe's output."""


def first_batch(request: TuneRequest, layout: BatchLayout = ANY_SIZE) -> int:
    """The first micro-batch of every sizing."""
    return max(min(_FIRST_BATCH, request.global_batch or _FIRST_BATCH), layout.least_samples)


def probe(
    request: TuneRequest,
    hardware: Hardware,
    usable_bytes: int,
    libraries: tuple[str, ...],
    tensor_degrees: tuple[int, ...],
    *,
    budget: TimeBudget,
    runner: Runner,
) -> tuple[Facts, ProbeResult]:
    """Build the plain model, make one step, learn the facts.

    The probe may use all free memory: the search finds out whether plain training fits below the limit, and needs the
    facts in any case.

    Raises:
        WorkloadError: The model does not make one step.
        NothingMeasuredError: The trial was ended from outside.
    """
    spec = _spec(
        ProbeTrial,
        request,
        hardware,
        usable_bytes,
        budget,
        libraries=libraries,
        tensor_degrees=tensor_degrees,
    )
    result = runner.run(spec)
    budget.durations.build_seconds = result.wall_seconds
    if result.facts is not None:
        return result.facts, result
    _raise_if_lost(result, "The model must complete one plain training step before anything can be tuned")
    raise WorkloadError(_why_probe_failed(result, runner, budget), result.traceback_text)


def count_parameters(
    request: TuneRequest, hardware: Hardware, usable_bytes: int, *, budget: TimeBudget, runner: Runner
) -> SizeCounts:
    """Count the parameters of every size.

    Raises:
        WorkloadError: They cannot be counted.
        NothingMeasuredError: The trial was ended from outside.
    """
    counted = runner.run(_spec(CountTrial, request, hardware, usable_bytes, budget))
    if counted.counts is not None:
        return counted.counts
    rule = "The sizes in SIZES must be counted before one is run"
    _raise_if_lost(counted, rule)
    reason = counted.reason
    if counted.outcome is not Outcome.FAILED:
        reason = f"{rule}, but that ended as {reason}"
    raise WorkloadError(reason, counted.traceback_text)


def _spec(
    kind: type[_S], request: TuneRequest, hardware: Hardware, usable_bytes: int, budget: TimeBudget, **asked: Any
) -> _S:
    return kind(
        workload=request.source,
        policy=Policy(micro_batch=first_batch(request)),
        device=hardware.device,
        memory_limit_bytes=usable_bytes,
        seed=request.seed,
        measure_seconds=budget.limits.sizing_seconds,
        time_limit_seconds=budget.limits.probe_limit_seconds,
        **asked,
    )


def _raise_if_lost(result: Result, rule: str) -> None:
    """Raise if the process was killed from outside, which says nothing about the model."""
    if result.outcome is Outcome.LOST:
        raise NothingMeasuredError(
            f"{rule}, but that ended as {result.outcome.value}: {result.reason}. Run the same command again."
        )


def _why_probe_failed(result: ProbeResult, runner: Runner, budget: TimeBudget) -> str:
    """Explain why the probe failed: it is plain training at the smallest batch, without which nothing can be tuned."""
    rule = "The model must complete one plain training step before anything can be tuned"
    if result.outcome is Outcome.FAILED:
        return result.reason
    if result.outcome is Outcome.TIMEOUT:
        seconds = f"{budget.limits.probe_limit_seconds:.0f} s"
        return (
            f"The first plain training step, and a few passes that show how a batch can be split, must end within "
            f"{seconds} (a third of --time-limit), but did not. Make the model smaller, look for a deadlock or a "
            "blocking call, or raise --time-limit."
        )
    text = f"{rule}, but it ended as {result.outcome.value}"
    if result.reason:
        text += f": {result.reason}"
    tail = _without_own_frames(runner.tail_of_log(result.key, lines=_LINES_OF_CRASH))
    if tail:
        text += "\nThe last lines that it printed:\n" + tail
    return text


def _without_own_frames(log: str) -> str:
    """A log without the lines about this package that Python's fault handler adds below the user's own frames."""
    own = f'File "{Path(advisor.errors.__file__).parent}'
    noise = (own, "Extension modules:")
    lines = [line for line in log.splitlines() if not line.strip().startswith(noise)]
    return "\n".join(lines[-_LINES:])
