"""Predict, before anything runs, whether a policy fits, up to which batch, and what takes the memory."""

from __future__ import annotations

import math

import msgspec

from advisor.hardware.rates import DeviceRates
from advisor.policy.policy import Policy
from advisor.predict.prediction import Category, Manner, MemoryPrediction, Reserved
from advisor.predict.roofline import PredictedStep, predict_step
from advisor.predict.step_work import StepWork

__all__ = ["EXPANDABLE_SEGMENTS", "AtBatch", "Outlook", "outlook_of"]

EXPANDABLE_SEGMENTS = "expandable_segments"
"""The method that decides which of the allocator's modes applies."""


class AtBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted memory of a step at one micro-batch.

    Attributes:
        micro_batch: Samples per forward pass.
        peak_bytes: Peak of live tensor bytes on the device.
        phase: Phase of the peak: ``"forward"``, ``"backward"`` or ``"optimizer"``.
        operator: The operator whose result caused the peak; may be empty.
        parts: Live bytes at the peak, by category.
        phase_peaks: Peak of each phase.
        activation_bytes: Bytes that the forward pass keeps for the backward pass.
    """

    micro_batch: int
    peak_bytes: int
    phase: str
    operator: str
    parts: dict[Category, int]
    phase_peaks: dict[str, int]
    activation_bytes: int


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions for a policy on a device. Nothing in it was measured on that device.

    What is not described is as in :class:`MemoryPrediction`.

    Attributes:
        workload: The workload's name.
        policy: The policy, at the requested micro-batch.
        device: The device's name.
        limit_bytes: Memory limit of the training.
        limit_from: Where that limit comes from, in words.
        asked: Memory at the requested batch.
        batch_from: Where that batch comes from, in words.
        largest: Memory at the largest batch within the limit; ``None`` if not even one sample fits, or if memory does
            not depend on the batch.
        fits: Whether the requested batch is within the limit: by reserved bytes (with expandable segments if the policy
            has them) if known, else by live bytes.
        times: Predicted step times at the requested batch and at the largest, if available.
        notes: Notes for the user.
    """

    workload: str
    policy: Policy
    device: str
    limit_bytes: int
    limit_from: str
    asked: AtBatch
    batch_from: str
    largest: AtBatch | None
    fits: bool
    reserved: tuple[Reserved, ...] = ()
    manner: Manner
    traced_at: tuple[int, ...]
    trace_seconds: float
    times: tuple[PredictedStep, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def allocator(self) -> Reserved | None:
        """Reserved memory with this policy, if known."""
        return _allocator(self.reserved, self.policy)


def outlook_of(
    prediction: MemoryPrediction,
    *,
    workload: str,
    policy: Policy,
    device: str,
    limit_bytes: int,
    limit_from: str,
    batch_from: str,
    work: StepWork | None = None,
    rates: DeviceRates | None = None,
    notes: tuple[str, ...] = (),
) -> Outlook:
    """Derive the outlook from a prediction; ``notes`` come before the prediction's own."""
    asked = _at(prediction, policy.micro_batch)
    largest, needed = prediction.largest_batch(limit_bytes), asked.peak_bytes
    allocator = _allocator(prediction.reserved, policy)
    if allocator is not None:
        assert allocator.micro_batch == policy.micro_batch, "the replay is of the batch asked for"
        needed = allocator.peak_bytes
        largest = min(largest, allocator.largest_batch) if largest < math.inf else largest
    at = [asked] if not 1 <= largest < math.inf else [asked, _at(prediction, math.floor(largest))]
    times: tuple[PredictedStep, ...] = ()
    if work is not None and rates is not None:
        batches = dict.fromkeys(one.micro_batch * policy.accumulation_steps for one in at)
        times = tuple(predict_step(work, batch, rates) for batch in batches)
    return Outlook(
        workload=workload,
        policy=policy,
        device=device,
        limit_bytes=limit_bytes,
        limit_from=limit_from,
        asked=asked,
        batch_from=batch_from,
        largest=at[1] if len(at) > 1 else None,
        fits=needed <= limit_bytes,
        reserved=prediction.reserved,
        manner=prediction.manner,
        traced_at=prediction.traced_at,
        trace_seconds=prediction.trace_seconds,
        times=times,
        notes=(*notes, *prediction.notes),
    )


def _allocator(reserved: tuple[Reserved, ...], policy: Policy) -> Reserved | None:
    expandable = any(setting.name == EXPANDABLE_SEGMENTS for setting in policy.methods)
    return next((one for one in reserved if one.expandable is expandable), None)


def _at(prediction: MemoryPrediction, micro_batch: int) -> AtBatch:
    moment = prediction.peak_moment(micro_batch)
    return AtBatch(
        micro_batch=micro_batch,
        peak_bytes=prediction.peak(micro_batch),
        phase=moment.phase,
        operator=moment.operator,
        parts=prediction.breakdown(micro_batch),
        phase_peaks=prediction.phase_peaks(micro_batch),
        activation_bytes=round(prediction.activations.at(micro_batch)),
    )
