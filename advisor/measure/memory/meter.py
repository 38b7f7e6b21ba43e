"""Peak memory of one training step, by phase and by category: what every device's meter has in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from advisor.measure.measurement import MemoryBreakdown, MemoryMeasurement
from advisor.measure.memory.storages import bytes_of
from advisor.measure.memory.timeline import MemoryTimeline
from advisor.replaced import replaced
from advisor.training.training import Phase

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["MemoryMeter", "breakdown", "gradient_bytes", "listening", "optimizer_state_bytes"]


class MemoryMeter(Protocol):
    """Measures the memory of single steps on one kind of device, and enforces a limit.

    A context manager around everything that a trial does on the device.

    Attributes:
        timeline: Every moment of the last measured step; ``None`` if only the peaks are known.
    """

    timeline: MemoryTimeline | None

    def __enter__(self) -> MemoryMeter:
        """Set the limit."""

    def __exit__(self, *exception: object) -> None:
        """Lift the limit."""

    def guarding(self, batch: Any) -> contextlib.AbstractContextManager[None]:
        """Steps on ``batch`` that end with an error when they pass the limit.

        Raises:
            DeviceOutOfMemoryError: Live bytes passed the limit (CPU).
            torch.OutOfMemoryError: The allocator refused (CUDA).
        """

    def measured_step(self, training: Training, batch: Any) -> tuple[torch.Tensor, MemoryMeasurement]:
        """One guarded step with its peak memory, and the same errors. The optimizer state must exist already."""

    def watching(self) -> contextlib.AbstractContextManager[Callable[[MemoryMeasurement], MemoryMeasurement]]:
        """Steps without instruments that may show more than the measured one did.

        It yields a function that completes an earlier measurement with what has been seen since.
        """


def listening(training: Training, listener: Callable[[Phase], None]) -> contextlib.AbstractContextManager[None]:
    """Let ``listener`` hear the phases of ``training``, in place of another."""
    return replaced(training, phase_listener=listener)


def gradient_bytes(training: Training) -> int:
    """Bytes of the gradients that exist now."""
    return bytes_of([parameter.grad for parameter in training.model.parameters()], training.device)


def optimizer_state_bytes(training: Training) -> int:
    """Bytes of the tensors that the optimizer keeps between steps."""
    return bytes_of([dict(state) for state in training.optimizer.state.values()], training.device)


def breakdown(training: Training, *, gradients: int, activations: int) -> MemoryBreakdown:
    """Bytes by category: of what lives between steps as it is now, of the rest as it was seen."""
    return MemoryBreakdown(
        parameters=bytes_of(list(training.model.parameters()), training.device),
        buffers=bytes_of(list(training.model.buffers()), training.device),
        gradients=gradients,
        optimizer_state=optimizer_state_bytes(training),
        activations=activations,
    )
