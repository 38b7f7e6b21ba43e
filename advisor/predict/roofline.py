"""Predict the time of a training step with the roofline model: every operator is as slow as its bottleneck.

Williams, Waterman and Patterson 2009, Roofline: an operator computes and moves bytes, and the slower of the two hides
the other. Operators too small to keep the device busy take the time of a launch, and copies between host and device
that of the link. Whether copies overlap with computation is unknown before a trial; here they do not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from advisor.hardware.rates import DeviceRates
from advisor.phase import Phase
from advisor.predict.step_work import Kind, StepWork, Work

__all__ = ["Bound", "PredictedPhase", "PredictedStep", "predict_step"]


class Bound(enum.Enum):
    """What bounds the time of an operator."""

    COMPUTE = "compute"
    BANDWIDTH = "memory bandwidth"
    LAUNCH = "launching operators"
    TRANSFER = "copies between host and device"


class PredictedPhase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prediction for one phase of a step.

    Attributes:
        phase: Which.
        predicted_seconds: Its time.
        seconds_by_bound: That time by the bounds of its operators.
        flops: Floating-point operations of its matrix products, convolutions and attention.
        moved_bytes: Bytes that it reads and writes on the device.
        transferred_bytes: Bytes that it copies between host and device.
        launches: Number of operators launched.
    """

    phase: Phase
    predicted_seconds: float
    seconds_by_bound: dict[Bound, float]
    flops: float
    moved_bytes: float
    transferred_bytes: float
    launches: float

    @property
    def bound(self) -> Bound:
        """What most of the time is bound by."""
        return _largest(self.seconds_by_bound)


class PredictedStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prediction for a training step.

    Attributes:
        batch: Samples.
        phases: The phases that have work, in order.
        measured_rates: Whether it uses measured rates; with published ones it is a lower bound.
        calibrated_at: Batches whose measured step times calibrated it; empty for the plain roofline.
    """

    batch: int
    phases: tuple[PredictedPhase, ...]
    measured_rates: bool
    calibrated_at: tuple[int, ...] = ()

    @property
    def predicted_seconds(self) -> float:
        """Time of the step."""
        return sum(one.predicted_seconds for one in self.phases)

    @property
    def predicted_samples_per_second(self) -> float:
        """Samples per second."""
        return self.batch / self.predicted_seconds

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: floating-point operations per byte moved on the device; 0 where none is moved."""
        moved = sum(one.moved_bytes for one in self.phases)
        return sum(one.flops for one in self.phases) / moved if moved else 0.0

    def share(self, phase: Phase) -> float:
        """The share of a phase in the step's time; 0 for one that has no work."""
        return sum(one.predicted_seconds for one in self.phases if one.phase is phase) / self.predicted_seconds

    def phase(self, phase: Phase) -> PredictedPhase | None:
        """A phase, if it has work."""
        return next((one for one in self.phases if one.phase is phase), None)

    def scaled(self, factor: float, calibrated_at: tuple[int, ...]) -> PredictedStep:
        """The same step with all times multiplied by a factor."""
        assert factor > 0, f"a factor between times is positive, got {factor}"
        phases = tuple(
            msgspec.structs.replace(
                one,
                predicted_seconds=one.predicted_seconds * factor,
                seconds_by_bound={bound: seconds * factor for bound, seconds in one.seconds_by_bound.items()},
            )
            for one in self.phases
        )
        return msgspec.structs.replace(self, phases=phases, calibrated_at=calibrated_at)


def predict_step(work: StepWork, batch: int, rates: DeviceRates) -> PredictedStep:
    """The step at a batch of at least one sample, on a device with these rates."""
    assert batch >= 1, f"a batch has at least one sample, got {batch}"
    by_phase: dict[Phase, list[Work]] = {}
    for one in work.work_at(batch):
        by_phase.setdefault(one.phase, []).append(one)
    phases = tuple(_phase(phase, by_phase[phase], rates) for phase in Phase if phase in by_phase)
    return PredictedStep(batch=batch, phases=phases, measured_rates=rates.measured)


def _seconds(work: Work, rates: DeviceRates) -> dict[Bound, float]:
    """Time of a group of similar operators under each bound alone; the largest counts."""
    calls = max(work.launches, 1.0)
    launching = work.launches * (rates.launch_seconds or 0.0)
    if work.kind in (Kind.TO_DEVICE, Kind.TO_HOST):
        to_device = work.kind is Kind.TO_DEVICE
        link = rates.to_device_bytes_per_second if to_device else rates.to_host_bytes_per_second
        # Rates without a link are a CPU's, where the copy is within memory.
        seconds = work.read_bytes / (link or rates.bandwidth.at(work.moved_bytes / calls))
        return {Bound.TRANSFER: seconds, Bound.LAUNCH: launching}
    rate = rates.convolution if work.kind is Kind.CONVOLUTION else rates.matmul
    old_bytes = work.read_bytes + work.written_bytes
    computing = work.flops / rate(work.number_format)
    result_rate = {Kind.FUNCTION: rates.function_bytes_per_second, Kind.RANDOM: rates.random_bytes_per_second}
    if elementwise := result_rate.get(work.kind):
        computing = (work.written_bytes + work.fresh_bytes) / elementwise
    return {
        Bound.COMPUTE: computing,
        Bound.BANDWIDTH: old_bytes / rates.bandwidth.at(work.moved_bytes / calls)
        + work.fresh_bytes / rates.fresh_bandwidth.at(work.fresh_bytes / calls),
        Bound.LAUNCH: launching,
    }


def _phase(phase: Phase, works: Iterable[Work], rates: DeviceRates) -> PredictedPhase:
    by_bound = dict.fromkeys(Bound, 0.0)
    flops = moved = transferred = launches = 0.0
    for work in works:
        bounds = _seconds(work, rates)
        bound = _largest(bounds)
        by_bound[bound] += bounds[bound]
        flops += work.flops
        launches += work.launches
        if work.kind in (Kind.TO_DEVICE, Kind.TO_HOST):
            transferred += work.read_bytes
        else:
            moved += work.moved_bytes
    return PredictedPhase(
        phase=phase,
        predicted_seconds=sum(by_bound.values()),
        seconds_by_bound=by_bound,
        flops=flops,
        moved_bytes=moved,
        transferred_bytes=transferred,
        launches=launches,
    )


def _largest(seconds: dict[Bound, float]) -> Bound:
    return max(seconds, key=seconds.__getitem__)
