"""The runs of all papers' commands: one trial at a time, in a process of its own, and what its figure is called."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from advisor.methods.use import MethodUse
from advisor.session.setup.versions import versions
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import CutShortError, Runner
from advisor.trial.result import Result, TimeResult
from advisor.trial.spec import TimeTrial, Trial
from benchmarks.papers.command import Options, TimeIsUpError
from benchmarks.papers.figures import Figure
from benchmarks.papers.specs import policy_of, spec_of

__all__ = ["WORKLOADS", "completed", "figure", "settled", "timed", "why"]

_R = TypeVar("_R", bound=Result)

WORKLOADS = Path(__file__).resolve().parent / "workloads"
"""Where the papers' models are: one file each, as ``momadvise`` takes it."""

_TIME_LIMIT_SECONDS = 120.0

_BESIDE = ("accelerate", "scikit-learn")


def timed(
    runner: Runner,
    options: Options,
    workload: Path | str,
    uses: Sequence[MethodUse],
    *,
    batch: int,
    seconds: float,
    model_size: Mapping[str, int | float] | None = None,
    limit_bytes: int | None = None,
    time_limit_seconds: float = _TIME_LIMIT_SECONDS,
    accumulation_steps: int = 1,
) -> TimeResult:
    """Train for a short while under a policy of these methods.

    Args:
        runner: Runs it.
        options: Of the command; they name the device.
        workload: A model file, or ``hf:NAME``.
        uses: The methods; none is plain training.
        batch: Micro-batch size in samples.
        seconds: How long steps are timed.
        model_size: Keyword arguments of the model file's ``build_model``.
        limit_bytes: The memory limit; ``None`` for what is free.
        time_limit_seconds: After it the trial is ended, on a GPU.
        accumulation_steps: Micro-batches per optimizer step.

    Returns:
        What was measured, or the outcome and the reason for which nothing was.

    Raises:
        TimeIsUpError: The minutes of this call are over.
    """
    return completed(
        runner,
        options,
        spec_of(
            TimeTrial,
            options,
            workload,
            msgspec.structs.replace(policy_of(uses, batch), accumulation_steps=accumulation_steps),
            seconds=seconds,
            model_size=model_size,
            limit_bytes=limit_bytes,
            time_limit_seconds=time_limit_seconds,
        ),
    )


def completed(runner: Runner, options: Options, spec: Trial[_R]) -> _R:
    """A trial that came to an end of its own. One that the end of the call cuts short says nothing: it is no result.

    Raises:
        TimeIsUpError: The minutes of this call are over.
    """
    options.check_time()
    try:
        return runner.run(spec, until=options.end)
    except CutShortError:
        raise TimeIsUpError from None


def why(*results: Result) -> str:
    """Why there is no figure: the outcome of the first run that has none, with its reason; empty when all ran."""
    for one in results:
        if not isinstance(one, TimeResult) or one.measurement is None:
            return f"{one.outcome.value}: {one.reason}" if one.reason else one.outcome.value
    return ""


def settled(one: Figure) -> bool:
    """Whether another try would find the same: there is a figure, or it did not fit, or was refused."""
    again = (Outcome.OUT_OF_MEMORY, Outcome.REFUSED)
    return one.ours is not None or one.reason.startswith(tuple(outcome.value for outcome in again))


def figure(
    options: Options,
    paper: str,
    table: str,
    row: str,
    column: str,
    ours: float | None,
    *,
    theirs: float | None = None,
    reason: str = "",
) -> Figure:
    """A figure of this device, these versions and today."""
    return Figure(
        paper=paper,
        table=table,
        row=row,
        column=column,
        theirs=theirs,
        ours=ours,
        reason=reason,
        size=options.size,
        device=options.hardware.name,
        versions=_all_versions(),
        date=datetime.date.today().isoformat(),
    )


@functools.cache
def _all_versions() -> dict[str, str]:
    """Those of the product, and of what only the papers' commands use."""
    found = versions()
    for package in _BESIDE:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
