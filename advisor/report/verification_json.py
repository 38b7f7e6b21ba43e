"""The document that ``momadvise verify --json`` prints on standard output."""

from __future__ import annotations

import msgspec

from advisor.decide.verdict import Check
from advisor.decide.verification import Verification
from advisor.goal import Fidelity
from advisor.methods.use import MethodUse
from advisor.report.jsonout import JSON_SCHEMA_VERSION, json_text
from advisor.trial.outcome import Outcome

__all__ = ["JsonVerification", "json_verification"]


class JsonVerification(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a policy, beside what it promises.

    Attributes:
        schema: Version of the format.
        kept: Whether nothing that was judged is outside the promise; also the exit status.
        workload: Its name.
        device: The device's name.
        methods: The methods with their parameters.
        micro_batch: Samples per forward pass.
        accumulation_steps: Passes per optimizer step.
        fidelity: What the methods promise together.
        compared_samples: Samples per step that were compared.
        outcome: How the wrapper's runs ended: ``"ok"``, or the first that did not.
        reason: Why, if not OK.
        checks: What was looked at: name, promised, found (in words), and kept: ``"kept"``, ``"not kept"`` or
            ``"not judged"``.
        plain_losses: Of the plain loop's steps.
        losses: Of the wrapper's.
        gradient_error: Relative L2 error of the first gradient; ``null`` where it was not compared.
        update_errors: After each step the relative L2 error of how far the parameters have moved.
        peak_bytes: The wrapper's peak, or ``null``.
        plain_peak_bytes: Of plain training at the baseline's batch, or ``null``.
        samples_per_second: The wrapper's, or ``null``.
        plain_samples_per_second: Of plain training by itself, or ``null``.
        notes: What the user should know.
    """

    schema: int
    kept: bool
    workload: str
    device: str
    methods: tuple[MethodUse, ...]
    micro_batch: int
    accumulation_steps: int
    fidelity: Fidelity
    compared_samples: int
    outcome: Outcome
    reason: str
    checks: tuple[Check, ...]
    plain_losses: tuple[float, ...]
    losses: tuple[float, ...]
    gradient_error: float | None
    update_errors: tuple[float, ...]
    peak_bytes: int | None
    plain_peak_bytes: int | None
    samples_per_second: float | None
    plain_samples_per_second: float | None
    notes: tuple[str, ...]


def json_verification(found: Verification) -> str:
    """The document, indented."""
    own, measured, plain = found.wrapper, found.measurement, found.plain_measurement
    document = JsonVerification(
        schema=JSON_SCHEMA_VERSION,
        kept=found.kept,
        workload=found.workload,
        device=found.device,
        methods=found.policy.methods,
        micro_batch=found.policy.micro_batch,
        accumulation_steps=found.policy.accumulation_steps,
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
    return json_text(document)
