"""The runs of the papers' commands: one trial at a time, in its own process, and how its results are stored."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from advisor.methods.setting import MethodSetting
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
"""The folder of the papers' models: one file each, in ``momadvise``'s format."""

_TIME_LIMIT_SECONDS = 120.0

_BESIDE = ("accelerate", "scikit-learn")


def timed(
    runner: Runner,
    options: Options,
    workload: Path | str,
    settings: Sequence[MethodSetting],
    *,
    batch: int,
    seconds: float,
    model_size: Mapping[str, int | float] | None = None,
    limit_bytes: int | None = None,
    time_limit_seconds: float = _TIME_LIMIT_SECONDS,
    accumulation_steps: int = 1,
) -> TimeResult:
    """Train for a short while with these methods.

    Args:
        runner: Runs it.
        options: Options of the command; they name the device.
        workload: A model file, or ``hf:NAME``.
        settings: The methods; none is plain training.
        batch: Micro-batch size in samples.
        seconds: How long steps are timed.
        model_size: Keyword arguments of the model file's ``build_model``.
        limit_bytes: The memory limit; ``None`` for what is free.
        time_limit_seconds: Time limit of the trial on a GPU.
        accumulation_steps: Micro-batches per optimizer step.

    Returns:
        The measurement, or the outcome and reason why there is none.

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
            msgspec.structs.replace(policy_of(settings, batch), accumulation_steps=accumulation_steps),
            seconds=seconds,
            model_size=model_size,
            limit_bytes=limit_bytes,
            time_limit_seconds=time_limit_seconds,
        ),
    )


def completed(runner: Runner, options: Options, spec: Trial[_R]) -> _R:
    """A trial that ended by itself. One that the end of the call cuts short is not a result.

    Raises:
        TimeIsUpError: The minutes of this call are over.
    """
    options.check_time()
    try:
        return runner.run(spec, until=options.end)
    except CutShortError:
        raise TimeIsUpError from None


def why(*results: Result) -> str:
    """Why there is no value: outcome and reason of the first run without a measurement; empty if all ran."""
    for one in results:
        if not isinstance(one, TimeResult) or one.measurement is None:
            return f"{one.outcome.value}: {one.reason}" if one.reason else one.outcome.value
    return ""


def settled(one: Figure) -> bool:
    """Whether repeating it is pointless: it was measured, did not fit, or was refused."""
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
    """A value on this device, with these versions and today's date."""
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
    """Versions of the product's packages and of those that only the papers' commands use."""
    found = versions()
    for package in _BESIDE:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
