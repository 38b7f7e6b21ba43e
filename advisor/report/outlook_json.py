"""The document that ``momadvise predict --json`` prints on standard output."""

from __future__ import annotations

import msgspec

from advisor.methods.use import MethodUse
from advisor.predict.policy_outlook import AtBatch, Outlook
from advisor.predict.prediction import Reserved
from advisor.predict.roofline import PredictedStep
from advisor.report.jsonout import JSON_SCHEMA_VERSION, json_text

__all__ = ["JsonOutlook", "json_outlook"]


class JsonOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted. No figure of memory in it was measured.

    Attributes:
        schema: Version of the format.
        predicted: Always true: tells this document from those that hold measurements.
        workload: Its name.
        device: The device's name.
        methods: The methods with their parameters.
        accumulation_steps: Passes per optimizer step.
        fits: Whether the batch asked for is within the limit; also the exit status.
        limit_bytes: The limit.
        limit_from: Where that limit comes from.
        asked: At the batch asked for.
        batch_from: Where that batch comes from.
        reserved: What torch's caching allocator takes from a GPU; empty on a CPU.
        largest: At the largest batch that fits; ``null`` if none does, or if every one does.
        manner: ``"aligned"`` (exact at every batch) or ``"fitted"`` (a line through two batches).
        traced_at: The batches that were traced.
        trace_seconds: What that took.
        times: Predicted time of a step by phase and by what bounds it; empty where that is not predicted.
        notes: What the user should know.
    """

    schema: int
    predicted: bool
    workload: str
    device: str
    methods: tuple[MethodUse, ...]
    accumulation_steps: int
    fits: bool
    limit_bytes: int
    limit_from: str
    asked: AtBatch
    batch_from: str
    reserved: tuple[Reserved, ...]
    largest: AtBatch | None
    manner: str
    traced_at: tuple[int, ...]
    trace_seconds: float
    times: tuple[PredictedStep, ...]
    notes: tuple[str, ...]


def json_outlook(outlook: Outlook) -> str:
    """The document, indented."""
    document = JsonOutlook(
        schema=JSON_SCHEMA_VERSION,
        predicted=True,
        workload=outlook.workload,
        device=outlook.device,
        methods=outlook.policy.methods,
        accumulation_steps=outlook.policy.accumulation_steps,
        fits=outlook.fits,
        limit_bytes=outlook.limit_bytes,
        limit_from=outlook.limit_from,
        asked=outlook.asked,
        batch_from=outlook.batch_from,
        reserved=outlook.reserved,
        largest=outlook.largest,
        manner=outlook.manner.value,
        traced_at=outlook.traced_at,
        trace_seconds=outlook.trace_seconds,
        times=outlook.times,
        notes=outlook.notes,
    )
    return json_text(document)
