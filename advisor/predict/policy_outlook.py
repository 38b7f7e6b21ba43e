"""Will it fit, up to which batch, and what takes the memory: the answer to somebody who has not run anything."""

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
"""The method that decides which of the allocator's ways counts."""


class AtBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a step at one micro-batch, as predicted.

    Attributes:
        micro_batch: Samples per forward pass.
        peak_bytes: Most live bytes of tensors on the device.
        phase: When that is: ``"forward"``, ``"backward"`` or ``"optimizer"``.
        operator: The operator whose result made it the most; may be empty.
        parts: What lives then.
        phase_peaks: The most that lives in each phase.
        activation_bytes: What the forward pass keeps for the backward pass.
    """

    micro_batch: int
    peak_bytes: int
    phase: str
    operator: str
    parts: dict[Category, int]
    phase_peaks: dict[str, int]
    activation_bytes: int


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted of a policy on a device. Nothing in it was measured on that device.

    Attributes:
        workload: Its name.
        policy: What is applied; its micro-batch is the one asked for.
        device: The device's name.
        limit_bytes: What the training may take.
        limit_from: Where that limit comes from, for people.
        asked: At the batch asked for.
        batch_from: Where that batch comes from, for people.
        largest: At the largest batch within the limit; ``None`` if not even one sample fits, or if the batch adds
            nothing.
        fits: Whether the batch asked for is within the limit: what the allocator reserves, with expandable segments if
            the policy has them, where that is known, and else the live bytes.
        reserved: What torch's caching allocator takes, without and with expandable segments; empty where there is none
            (on a CPU), or where it cannot be predicted.
        manner: How the prediction was made.
        traced_at: The micro-batches that were traced.
        trace_seconds: What that took.
        times: How long a step takes at the batch asked for and at the largest, where that is predicted.
        notes: What the user should know.
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
        """What the allocator takes with this policy, where that is known."""
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
    """Read the answer off a prediction.

    Args:
        prediction: Of the policy's memory.
        workload: Its name.
        policy: The policy, at the batch asked for.
        device: The device's name.
        limit_bytes: What the training may take.
        limit_from: Where that limit comes from, for people.
        batch_from: Where the batch comes from, for people.
        work: The work of a step, if it was counted.
        rates: Of the device, if they are known.
        notes: What the user should know beside the prediction's own notes.
    """
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
        steps = policy.accumulation_steps
        times = tuple(
            predict_step(work, batch * steps, rates) for batch in dict.fromkeys(one.micro_batch for one in at)
        )
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
    expandable = any(use.name == EXPANDABLE_SEGMENTS for use in policy.methods)
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
