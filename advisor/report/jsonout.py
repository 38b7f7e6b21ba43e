"""The document that ``--json`` prints on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from advisor.decide.candidate import Candidate, Confirmation, Recommendation
from advisor.decide.cost import cost_of
from advisor.decide.guard import comparison_evidence
from advisor.decide.score import gain_over
from advisor.errors import MomadviseError
from advisor.goal import Goal, GoalKind
from advisor.hardware.hardware import Hardware
from advisor.measure.in_turn import Speedup
from advisor.methods.use import MethodUse
from advisor.policy.file import ComparisonEvidence
from advisor.text.printable import printable
from advisor.text.records import encode_record

__all__ = ["JSON_SCHEMA_VERSION", "JsonAnswer", "JsonError", "JsonWinner", "json_answer", "json_error", "json_text"]

JSON_SCHEMA_VERSION = 1
"""Grows when a field changes its meaning or goes; new fields alone do not change it."""


class JsonWinner(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a script asks for first; all measured.

    Attributes:
        label: The methods in one line.
        methods: The methods with their parameters.
        micro_batch: Samples per forward pass.
        accumulation_steps: Passes per optimizer step.
        gpu_count: Devices that train together.
        samples_per_second: Throughput.
        latency_seconds: Time per iteration (optimizer step).
        cost_usd: US dollars per iteration where the goal is ``cheapest``, else ``null``.
        gain_over_baseline: Share by which it beats the baseline in the metric of the goal (0.31 is 31 %; for
            ``cheapest`` that is cost; for ``bigger`` parameters, or the size where these do not change), or ``null``
            without a baseline or a size to compare.
        tie: Whether that gain is inside the noise.
        peak_bytes: Peak memory.
        fidelity: Fidelity class.
        loss_drift: Largest relative difference of the first losses from plain training, or ``null``.
        comparison: Its training beside the exact run's over some tens of steps, or ``null``.
        not_compared: Why there is none, where there should be.
        model_size: Arguments of ``build_model`` and ``make_batch``; empty for the model as it is.
        parameter_count: Parameters of the model at that size (goal ``bigger``), else ``null``.
        promise: Samples per second over the baseline's with an interval, from turns in fresh processes, or ``null``.
    """

    label: str
    methods: tuple[MethodUse, ...]
    micro_batch: int
    accumulation_steps: int
    gpu_count: int
    samples_per_second: float
    latency_seconds: float
    cost_usd: float | None
    gain_over_baseline: float | None
    tie: bool
    peak_bytes: int
    fidelity: str
    loss_drift: float | None
    comparison: ComparisonEvidence | None = None
    not_compared: str = ""
    model_size: dict[str, int | float] = {}
    parameter_count: int | None = None
    promise: Speedup | None = None


class JsonAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer.

    Attributes:
        schema: :data:`JSON_SCHEMA_VERSION`.
        workload: Short name of the workload.
        goal: What was asked for.
        hardware: Where it was measured.
        versions: Package -> version.
        winner: The choice in short.
        recommendation: Everything that was tried.
        files: What was written, by what it is.
        notes: What the user should know.
        timings: What the run was busy with -> seconds.
    """

    schema: int
    workload: str
    goal: Goal
    hardware: Hardware
    versions: dict[str, str]
    winner: JsonWinner
    recommendation: Recommendation
    files: dict[str, str]
    notes: tuple[str, ...]
    timings: dict[str, float] = {}


class JsonError(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed instead when there is no answer.

    Attributes:
        schema: :data:`JSON_SCHEMA_VERSION`.
        error: Class name of the error, as in :mod:`advisor.errors`.
        message: Its message.
    """

    schema: int
    error: str
    message: str


def json_answer(
    recommendation: Recommendation,
    *,
    workload: str,
    goal: Goal,
    hardware: Hardware,
    versions: Mapping[str, str],
    files: Mapping[str, Path],
    notes: tuple[str, ...] = (),
    timings: Mapping[str, float] | None = None,
) -> str:
    """The answer as indented JSON; infinities become ``null``.

    Args:
        recommendation: The answer.
        workload: Short name of the workload.
        goal: What was asked for.
        hardware: Where it was measured.
        versions: Package -> version.
        files: What was written: what it is -> where it is.
        notes: What the user should know.
        timings: What the run was busy with -> seconds.
    """
    document = JsonAnswer(
        schema=JSON_SCHEMA_VERSION,
        workload=workload,
        goal=goal,
        hardware=hardware,
        versions=dict(versions),
        winner=_winner(recommendation, goal),
        recommendation=recommendation,
        files={what: str(path) for what, path in files.items()},
        notes=notes,
        timings=dict(timings or {}),
    )
    return json_text(document)


def json_error(error: MomadviseError) -> str:
    """An error as indented JSON."""
    return json_text(JsonError(schema=JSON_SCHEMA_VERSION, error=type(error).__name__, message=str(error)))


def _winner(answer: Recommendation, goal: Goal) -> JsonWinner:
    winner, confirmation = answer.winner, answer.confirmation
    measurement = winner.measurement
    assert measurement is not None, "a winner is measured"
    return JsonWinner(
        label=winner.policy.label,
        methods=winner.policy.methods,
        micro_batch=winner.policy.micro_batch,
        accumulation_steps=winner.policy.accumulation_steps,
        gpu_count=winner.policy.gpu_count,
        samples_per_second=measurement.samples_per_second,
        latency_seconds=measurement.step_seconds,
        cost_usd=cost_of(winner, goal).usd if goal.kind is GoalKind.CHEAPEST else None,
        gain_over_baseline=_gain(winner, answer.baseline, goal),
        tie=answer.tie,
        peak_bytes=_peak(measurement.memory.peak_bytes, confirmation),
        fidelity=winner.fidelity.value,
        loss_drift=winner.loss_drift,
        comparison=comparison_evidence(winner),
        not_compared=winner.not_compared,
        model_size=winner.model_size,
        parameter_count=winner.parameter_count,
        promise=None if confirmation is None else confirmation.promise,
    )


def _peak(searched: int, confirmation: Confirmation | None) -> int:
    """The larger of the two measured peaks: the one to plan with."""
    if confirmation is None or confirmation.measurement is None:
        return searched
    return max(searched, confirmation.measurement.memory.peak_bytes)


def _gain(winner: Candidate, baseline: Candidate | None, goal: Goal) -> float | None:
    if baseline is None or baseline.measurement is None or winner.measurement is None:
        return None
    return gain_over(winner, baseline, goal)


def json_text(document: msgspec.Struct) -> str:
    """A document as indented JSON, with escapes for characters that steer a terminal: they are all inside texts."""
    text = msgspec.json.format(encode_record(document), indent=2).decode()
    if printable(text) == text:
        return text
    return "".join(one if printable(one) == one else json.dumps(one)[1:-1] for one in text)
