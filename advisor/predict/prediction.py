"""Memory predictions from traces: affine functions of the micro-batch, and the largest batch that fits.

In one step every allocation is affine in the micro-batch, and so are the live bytes at any moment. The peak is the
largest of these moments, and which one that is changes with the batch (from the optimizer step to the start of the
backward pass, say). Only the few of thousands of moments that are the largest for some batch are kept, each with its
live bytes by category. That is exact for every batch, while a line through two peaks may be off by half.
"""

from __future__ import annotations

import enum
import math

import msgspec

__all__ = ["Affine", "Category", "CudaDevice", "Manner", "MemoryPrediction", "Moment", "Reserved"]


class Category(enum.Enum):
    """Uses of memory."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    """Made in the forward pass."""
    TEMPORARIES = "temporaries"
    """Made in the backward pass or the optimizer step, and neither gradients nor state."""
    BATCH = "batch"
    """The batch itself, on the device."""


class Manner(enum.Enum):
    """How a prediction was made; reported to the user unless it is the first."""

    ALIGNED = "aligned"
    """Two traces, allocation by allocation."""
    FITTED = "fitted"
    """The traces of two batches differ in more than sizes: lines through the peaks of each phase, at large batches."""


class Affine(msgspec.Struct, frozen=True):
    """A line against the micro-batch, mostly of bytes: ``fixed + per_sample * micro_batch``."""

    fixed: float
    per_sample: float

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> Affine:
        """The line through two points ``(micro-batch, value)``."""
        (batch, value), (larger, other) = first, second
        slope = (other - value) / (larger - batch)
        return cls(value - slope * batch, slope)

    def at(self, micro_batch: float) -> float:
        """The value at a micro-batch."""
        return self.fixed + self.per_sample * micro_batch


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of the step that is its phase's peak for some micro-batch.

    Attributes:
        phase: ``"forward"``, ``"backward"`` or ``"optimizer"``; ``"idle"`` between steps.
        live: Live bytes.
        parts: Live bytes by category, without empty ones.
        operator: The operator whose result caused the peak.
    """

    phase: str
    live: Affine
    parts: dict[Category, Affine]
    operator: str = ""


class CudaDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The CUDA device that a trace stands for.

    Attributes:
        compute_capability: ``(major, minor)``: decides which attention kernels are available.
        multiprocessors: Their number decides how many blocks a kernel has, and how much workspace those need.
    """

    compute_capability: tuple[int, int]
    multiprocessors: int

    @property
    def threads_per_multiprocessor(self) -> int:
        """Most resident threads, by the table of compute capabilities in the CUDA programming guide."""
        if self.compute_capability == (7, 5):
            return 1024
        major, minor = self.compute_capability
        return 1536 if (major == 8 and minor > 0) or major == 12 else 2048

    @property
    def is_short_of_shared_memory(self) -> bool:
        """Whether a block may have at most 99 KiB of shared memory, by the same table."""
        major, minor = self.compute_capability
        return (major == 8 and minor not in (0, 7)) or major == 12


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """Memory reserved by torch's caching allocator, from a replay of the step's allocations.

    Attributes:
        expandable: Whether ``expandable_segments`` is on.
        micro_batch: The requested batch.
        peak_bytes: Most bytes reserved at that batch; above the limit if it does not fit.
        allocated_bytes: Most bytes of blocks in use at that batch, which are larger than what is in them.
        largest_batch: The largest micro-batch that never runs out of memory under the limit, to within one percent
            (it does fit); 0 if none. At most the requested batch if memory does not depend on the batch.
        largest_peak_bytes: Most bytes reserved there, under the limit.
    """

    expandable: bool
    micro_batch: int
    peak_bytes: int
    allocated_bytes: int
    largest_batch: int
    largest_peak_bytes: int


class MemoryPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one optimizer step, with the optimizer state in place, against the micro-batch.

    Attributes:
        moments: For every phase, the moments that are its peak for some batch; at least one.
        activations: Memory kept for the backward pass: allocated in the forward pass and live at its end.
        accumulation_steps: Passes of the traced step: 1, or 2 for two or more (a third adds nothing).
        manner: How it was made.
        traced_at: The micro-batches that were traced.
        trace_seconds: Time spent tracing.
        notes: Known differences from a real run.
        own_batch: The workload's ``BATCH_SIZE``, or ``None``.
        reserved: On a CUDA device, the allocator's reserved memory without and with expandable segments.
    """

    moments: tuple[Moment, ...]
    activations: Affine
    accumulation_steps: int = 1
    manner: Manner = Manner.ALIGNED
    traced_at: tuple[int, ...]
    trace_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    own_batch: int | None = None
    reserved: tuple[Reserved, ...] = ()

    def peak_moment(self, micro_batch: int, phase: str | None = None) -> Moment:
        """The moment with the most live bytes, of one phase or of all."""
        moments = (moment for moment in self.moments if phase in (None, moment.phase))
        return max(moments, key=lambda moment: moment.live.at(micro_batch))

    def peak(self, micro_batch: int) -> int:
        """Predicted peak of live bytes; never present it as measured."""
        return math.ceil(self.peak_moment(micro_batch).live.at(micro_batch))

    def phase_peaks(self, micro_batch: int) -> dict[str, int]:
        """Peak of live bytes in each phase."""
        phases = dict.fromkeys(moment.phase for moment in self.moments)
        return {phase: math.ceil(self.peak_moment(micro_batch, phase).live.at(micro_batch)) for phase in phases}

    def breakdown(self, micro_batch: int) -> dict[Category, int]:
        """Live bytes at the peak, by category."""
        return {kind: round(part.at(micro_batch)) for kind, part in self.peak_moment(micro_batch).parts.items()}

    def largest_batch(self, usable_bytes: float) -> float:
        """The largest micro-batch whose peak fits in this many bytes.

        Returns:
            A fraction; infinite if the batch adds nothing, below 1 if not even one sample fits.
        """
        largest = math.inf
        for moment in self.moments:
            if moment.live.per_sample > 0:
                largest = min(largest, (usable_bytes - moment.live.fixed) / moment.live.per_sample)
            elif moment.live.at(1) > usable_bytes:
                return 0.0
        return largest
