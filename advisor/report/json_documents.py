"""The documents that ``--json`` prints on standard output.

Fields are those of the records they come from (:class:`~advisor.decide.answer.Answer`,
:class:`~advisor.predict.policy_outlook.Outlook`, :class:`~advisor.decide.verification.Verification`) unless a function
says otherwise. Every document has a ``schema``: :data:`JSON_SCHEMA_VERSION`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from advisor.decide.answer import Answer
from advisor.decide.candidate import Candidate
from advisor.decide.cost import cost_of
from advisor.decide.guard import comparison_evidence
from advisor.decide.policy_status import PolicyCheck
from advisor.decide.score import gain_over
from advisor.decide.verdict import Verification
from advisor.errors import MomadviseError
from advisor.exports.config_file import Patched, installed_version, new_configuration
from advisor.exports.export import Export
from advisor.exports.installed_keys import absent_keys
from advisor.goal import Goal, GoalKind
from advisor.hardware.mesh import DATA_ONLY, MeshAxis
from advisor.policy.policy import Policy
from advisor.predict.policy_outlook import Outlook
from advisor.text.printable import printable
from advisor.text.records import encode_record

__all__ = [
    "JSON_SCHEMA_VERSION",
    "json_answer",
    "json_check",
    "json_error",
    "json_export",
    "json_outlook",
    "json_verification",
]

JSON_SCHEMA_VERSION = 1
"""Grows when a field changes its meaning or goes; new fields alone do not change it."""


def json_answer(answer: Answer) -> str:
    """A whole answer, with the values that a script asks for first as ``winner``.

    ``cached`` says that it was measured before, on ``date``, and nothing was measured now.

    In ``winner``, which is measured throughout: ``latency_seconds`` is the time per iteration (optimizer step);
    ``cost_usd`` is per iteration, and ``null`` unless the goal is ``cheapest``; ``gain_over_baseline`` is relative to
    the baseline in the metric of the goal (0.31 is 31 %; for ``cheapest`` that is cost; for ``bigger`` parameters, or
    the size where these do not change), or ``null`` without a baseline or a size to compare; ``tie`` says whether that
    gain is inside the noise; ``peak_bytes`` is the larger of search and confirmation, the one to plan with;
    ``comparison`` holds its training beside the reference run's over some tens of steps, or ``null``, and
    ``not_compared`` the reason; ``promise`` is samples per second over the baseline's with an interval, from turns in
    fresh processes, or ``null``. Where the baseline is the user's own settings, ``goal`` also has ``own_settings``,
    where they were read from, and ``kept_methods``, those of them that every winner has.
    """
    return _document(
        _picked(answer, "workload", "goal", "hardware", "versions", "cached", "date") | {"goal": _goal(answer.goal)},
        winner=_winner(answer),
        recommendation=answer.recommendation,
        files={what: str(path) for what, path in answer.files.items()},
        notes=answer.notes,
        timings=answer.timings,
    )


def json_error(error: MomadviseError) -> str:
    """What is printed instead when there is no answer: the error's class, as in :mod:`advisor.errors`, and its text."""
    return _document(error=type(error).__name__, message=str(error))


def json_export(export: Export, patched: Patched | None, *, written: bool) -> str:
    """A policy as a trainer's configuration, with what became of each part of it.

    ``text`` is the configuration, or the file of the user's as it was ``written`` (``false``: left as it is);
    ``checked_version`` is the trainer's version whose keys they are, ``installed_version`` the one here or ``null``.
    ``absent`` has keys that the one here does not have, with their former names. Of the keys of the user's own,
    ``unknown`` are in no list of the installed trainer, and ``unchecked`` could not be looked up.
    """
    target = export.target
    return _document(
        target=target.name,
        library=target.library,
        checked_version=target.version,
        installed_version=installed_version(target),
        absent=absent_keys(export.keys, target),
        complete=export.complete,
        written=written,
        parts=export.lines,
        keys=export.keys,
        text=new_configuration(export) if patched is None else patched.text,
        changes=[] if patched is None else [change.words for change in patched.changes],
        misspelled={} if patched is None else patched.misspelled,
        unknown=[] if patched is None else patched.unknown,
        unchecked=[] if patched is None else patched.unchecked,
    )


def json_check(check: PolicyCheck) -> str:
    """Whether a policy holds: ``status`` is ``holds``, ``stale``, ``moved`` or ``cannot be told`` (see ``reason``).

    Each of ``differences`` has its ``weight`` (``stale``, ``read``, ``warning``, ``pick`` or ``moved``) and, as the
    command prints it, ``words``. ``command`` has the arguments of the command that measures a new policy.
    """
    return _document(
        _picked(check, "status", "workload", "device"),
        _picked(check.policy, "methods", "micro_batch", "accumulation_steps"),
        _picked(check, "strict", "remeasured", "reason", "command", "notes"),
        differences=[{**msgspec.structs.asdict(one), "words": one.words} for one in check.differences],
    )


def json_outlook(outlook: Outlook) -> str:
    """A prediction. ``predicted`` is always true: it tells this document from those that hold measurements."""
    return _document(
        {"predicted": True},
        _picked(outlook, "workload", "device"),
        _picked(outlook.policy, "methods", "accumulation_steps"),
        _mesh(outlook.policy),
        _picked(outlook, "fits", "limit_bytes", "limit_from", "asked", "batch_from", "reserved", "largest", "manner"),
        _picked(outlook, "traced_at", "trace_seconds", "times", "notes"),
    )


def json_verification(found: Verification) -> str:
    """What was measured of a policy, beside what it promises.

    Fields that begin with ``plain_`` are those of plain training at the baseline's batch; ``gradient_error`` and
    ``update_errors`` are relative L2 errors of the first gradient and, after each step, of how far the parameters have
    moved. What was not measured is ``null``.
    """
    own, measured, plain = found.wrapper, found.measurement, found.plain_measurement
    return _document(
        _picked(found, "kept", "workload", "device"),
        _picked(found.policy, "methods", "micro_batch", "accumulation_steps"),
        fidelity=found.fidelity,
        compared_samples=found.samples,
        outcome=found.outcome,
        reason=found.reason,
        checks=found.checks,
        plain_losses=found.plain.losses,
        losses=() if own is None else own.losses,
        gradient_error=None if own is None or own.gradient is None else own.gradient.error,
        update_errors=() if own is None else own.update_errors,
        peak_bytes=None if measured is None else measured.memory.peak_bytes,
        plain_peak_bytes=None if plain is None else plain.memory.peak_bytes,
        samples_per_second=None if measured is None else measured.samples_per_second,
        plain_samples_per_second=None if plain is None else plain.samples_per_second,
        notes=found.notes,
    )


def _winner(answer: Answer) -> dict[str, Any]:
    found, goal = answer.recommendation, answer.goal
    winner, baseline, confirmation = found.winner, found.baseline, found.confirmation
    measurement = winner.measured
    peaks = [one.memory.peak_bytes for one in (measurement, confirmation and confirmation.measurement) if one]
    return {
        **_picked(winner.policy, "label", "methods", "micro_batch", "accumulation_steps", "gpu_count"),
        **_mesh(winner.policy),
        "samples_per_second": measurement.samples_per_second,
        "latency_seconds": measurement.step_seconds,
        "cost_usd": cost_of(winner, goal).cost_usd if goal.kind is GoalKind.CHEAPEST else None,
        "gain_over_baseline": None
        if baseline is None or baseline.measurement is None
        else gain_over(winner, baseline, goal),
        "tie": found.tie,
        "peak_bytes": max(peaks),
        **_picked(winner, "fidelity", "loss_drift"),
        "comparison": comparison_evidence(winner),
        **_picked(winner, "not_compared", "model_size", "parameter_count"),
        "promise": None if confirmation is None else confirmation.promise,
    }


def _mesh(policy: Policy) -> dict[str, Any]:
    """Devices along each axis; nothing where only the data is divided."""
    if policy.axes == DATA_ONLY:
        return {}
    return {"mesh": {axis.value: policy.axes.degree(axis, policy.gpu_count) for axis in MeshAxis}}


def _goal(goal: Goal) -> dict[str, Any]:
    """The goal; what belongs to settings of the user's own only where there are some."""
    fields: dict[str, Any] = msgspec.to_builtins(goal)
    return {name: value for name, value in fields.items() if value or name not in ("own_settings", "kept_methods")}


def _picked(record: Answer | Candidate | Outlook | Policy | PolicyCheck | Verification, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _document(*parts: dict[str, Any], **fields: Any) -> str:
    """Indented JSON with escapes for characters that steer a terminal: they are all inside texts."""
    document = {"schema": JSON_SCHEMA_VERSION}
    for part in (*parts, fields):
        document |= part
    text = msgspec.json.format(encode_record(document), indent=2).decode()
    if printable(text) == text:
        return text
    return "".join(one if printable(one) == one else json.dumps(one)[1:-1] for one in text)
