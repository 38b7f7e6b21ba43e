"""Measurements of one trial. Names contain the units: bytes, seconds, joules."""

from __future__ import annotations

import enum

import msgspec

from advisor.measure.in_turn import Speedup
from advisor.text.records import AboveZero, CountFromOne

__all__ = ["Measurement", "MemoryBreakdown", "MemoryMeasurement", "SizePoint", "Sizing", "StopReason"]


class StopReason(enum.Enum):
    """Why timing ended."""

    STEADY = "steady"
    """The confidence interval became narrow enough."""
    BUDGET = "budget"
    """The trial's time was used up; the spread says how certain the value is."""
    OUTPACED = "outpaced"
    """The candidate was clearly slower than the best so far; its value is preliminary."""


class MemoryBreakdown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Live bytes on the device by category.

    Attributes:
        parameters: Of the whole model.
        buffers: Likewise.
        gradients: Gradients at the end of the backward pass.
        optimizer_state: Tensors that the optimizer keeps between steps.
        activations: Bytes that became live during the forward pass and still are at its end: what backward needs.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int


class MemoryMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak device memory of one full optimizer step, with the optimizer state in place.

    Attributes:
        peak_bytes: The value compared with a memory limit: reserved bytes on CUDA (what the process really takes),
            live tensor storage on CPU.
        peak_allocated_bytes: Peak of live tensor storage.
        peak_reserved_bytes: Peak reserved by the caching allocator (CUDA), also of a trial's timed steps; else
            ``None``.
        device_used_bytes: Memory of the whole device in use by this process according to NVML, else ``None``.
        allocation_retries: Times the CUDA allocator had to flush its cache and retry, likewise; else ``None``.
        forward_peak_bytes: Peak during the forward passes.
        backward_peak_bytes: Peak during the backward passes.
        optimizer_peak_bytes: Peak during the optimizer step.
        peak_resident_bytes: Largest resident set of the process during the timed steps (CPU), else ``None``: with the
            interpreter, its libraries, and what the C library keeps beyond live tensors.
        workspace_bytes: What cuBLAS held during the step, in every one of these peaks; 0 if no steps were watched
            after the measured one, and from torch 2.15 on, where each product has its own while it runs.
        breakdown: Live bytes by category.
    """

    peak_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    device_used_bytes: int | None
    allocation_retries: int | None
    forward_peak_bytes: int
    backward_peak_bytes: int
    optimizer_peak_bytes: int
    peak_resident_bytes: int | None = None
    workspace_bytes: int = 0
    breakdown: MemoryBreakdown

    @property
    def tensor_peak_bytes(self) -> int:
        """Peak of the training's own tensors: what a trace can predict, and what papers count."""
        return self.peak_allocated_bytes - self.workspace_bytes

    @property
    def tensor_peak_of_passes_bytes(self) -> int:
        """The same of the forward and backward passes, without the optimizer's step."""
        return max(self.forward_peak_bytes, self.backward_peak_bytes) - self.workspace_bytes

    @property
    def optimizer_is_peak(self) -> bool:
        """Whether the optimizer step, not the passes over the batch, sets the peak."""
        return self.optimizer_peak_bytes > max(self.forward_peak_bytes, self.backward_peak_bytes)


class SizePoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One batch size of a profiling run: its memory and a rough step time.

    Attributes:
        micro_batch: Samples.
        memory: Peak memory of its last step.
        step_seconds: The fastest of its steps (memory tracking, if any, excluded).
        speedup: Throughput relative to another training alternating with it; ``None`` if there was none.
        compared_at: Micro-batch of both in that comparison, which may be larger than this one.
    """

    micro_batch: CountFromOne
    memory: MemoryMeasurement
    step_seconds: AboveZero
    speedup: Speedup | None = None
    compared_at: int | None = None


class Sizing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profiling runs of one combination at growing batches, from which its largest batch is derived.

    Attributes:
        points: By growing micro-batch; at least two unless even the second did not fit.
        out_of_memory_at: The smallest micro-batch that did not fit, if one was met.
        loss_trace: Losses of the first steps at the first point, from the fixed seed: comparable between combinations.
        settled: Method -> what it settled on (``Training.settled``), for timed trials to reuse.
    """

    points: tuple[SizePoint, ...]
    out_of_memory_at: int | None
    loss_trace: tuple[float, ...]
    settled: dict[str, str] = {}


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measurements of a timed trial.

    Attributes:
        micro_batch: Samples per forward pass.
        accumulation_steps: Passes per optimizer step.
        step_seconds: Median of full optimizer steps, end to end with the host-to-device copy.
        step_seconds_low: Lower end of its 95 % confidence interval.
        step_seconds_high: Upper end.
        timed_steps: Number of steps behind the median.
        stop_reason: Why timing ended.
        samples_per_second: Samples per step / ``step_seconds``.
        tokens_per_second: The same in tokens where the batch has tokens, else ``None``.
        memory: Peak memory.
        making_seconds: How long ``make_batch`` took for a batch; not included in the step.
        joules_per_step: Energy by NVML's counter over the timed steps, else ``None``.
        loss_trace: Loss of every step, warm-up included.
    """

    micro_batch: CountFromOne
    accumulation_steps: CountFromOne
    step_seconds: AboveZero
    step_seconds_low: float
    step_seconds_high: float
    timed_steps: int
    stop_reason: StopReason
    samples_per_second: AboveZero
    tokens_per_second: float | None
    memory: MemoryMeasurement
    making_seconds: float = 0.0
    joules_per_step: float | None
    loss_trace: tuple[float, ...]

    @property
    def relative_spread(self) -> float:
        """Half the width of the confidence interval, relative to the median."""
        return (self.step_seconds_high - self.step_seconds_low) / (2 * self.step_seconds)
