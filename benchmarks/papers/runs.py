"""The runs of all papers' commands: one trial at a time, in a process of its own, and what its figure is called."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.methods.use import MethodUse
from advisor.policy.policy import Policy
from advisor.problem.source import resolve_source
from advisor.session.limits import memory_budget
from advisor.session.versions import versions
from advisor.trial.runner import Runner
from advisor.trial.spec import TrialKind, TrialResult, TrialSpec
from benchmarks.papers.command import Options
from benchmarks.papers.figures import Figure

__all__ = ["WORKLOADS", "figure", "timed", "why"]

WORKLOADS = Path(__file__).resolve().parent / "workloads"
"""Where the papers' models are: one file each, as ``momadvise`` takes it."""

_TIME_LIMIT_SECONDS = 120.0


def timed(
    runner: Runner,
    options: Options,
    workload: Path | str,
    uses: Sequence[MethodUse],
    *,
    batch: int,
    seconds: float,
    model_size: Mapping[str, int | float] | None = None,
    time_limit_seconds: float = _TIME_LIMIT_SECONDS,
    accumulation_steps: int = 1,
    memory_limit_bytes: int | None = None,
) -> TrialResult:
    """Train for a short while under a policy of these methods.

    Args:
        runner: Runs it.
        options: Of the command; they name the device.
        workload: A model file, or ``hf:NAME``.
        uses: The methods; none is plain training.
        batch: Micro-batch size in samples.
        seconds: How long steps are timed.
        model_size: Keyword arguments of the model file's ``build_model``.
        time_limit_seconds: After it the trial is ended.
        accumulation_steps: Micro-batches per optimizer step.
        memory_limit_bytes: The most it may take; what is free by default.

    Returns:
        What was measured, or the outcome and the reason for which nothing was.
    """
    return runner.run(
        TrialSpec(
            kind=TrialKind.TIME,
            workload=resolve_source(workload),
            model_size=dict(model_size or {}),
            policy=Policy(methods=tuple(uses), micro_batch=batch, accumulation_steps=accumulation_steps),
            device=options.hardware.device,
            memory_limit_bytes=memory_budget(options.hardware, memory_limit_bytes).limit_bytes,
            measure_seconds=seconds,
            time_limit_seconds=time_limit_seconds,
        )
    )


def why(*results: TrialResult) -> str:
    """Why there is no figure: the outcome of the first run that has none, with its reason; empty when all ran."""
    for one in results:
        if one.measurement is None:
            return f"{one.outcome.value}: {one.reason}" if one.reason else one.outcome.value
    return ""


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
        versions=versions(),
        date=datetime.date.today().isoformat(),
    )
