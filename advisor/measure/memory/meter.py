"""Peak memory of one training step, by phase and by category: what every device's meter has in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch

from advisor.measure.measurement import MemoryMeasurement
from advisor.measure.memory.storages import bytes_of
from advisor.measure.memory.timeline import MemoryTimeline
from advisor.training.training import Phase

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["MemoryMeter", "gradient_bytes", "listening", "optimizer_state_bytes"]


class MemoryMeter(Protocol):
    """Measures the memory of single steps on one kind of device, and enforces a limit.

    A meter is used as a context manager around everything that a trial does on the device.

    Attributes:
        timeline: Every moment of the last measured step, or ``None`` where a meter sees only the peaks.
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
        """One guarded step with its peak memory. The optimizer state must exist already.

        Raises:
            DeviceOutOfMemoryError: Live bytes passed the limit (CPU).
            torch.OutOfMemoryError: The allocator refused (CUDA).
        """

    def watching(self) -> contextlib.AbstractContextManager[Callable[[MemoryMeasurement], MemoryMeasurement]]:
        """Steps without instruments that may show more than the measured one did.

        What is entered is a function that completes a figure measured before with what has been seen since.
        """


@contextlib.contextmanager
def listening(training: Training, listener: Callable[[Phase], None]) -> Iterator[None]:
    """Let ``listener`` hear the phases of ``training``, then give the place back."""
    before = training.phase_listener
    training.phase_listener = listener
    try:
        yield
    finally:
        training.phase_listener = before


def gradient_bytes(model: torch.nn.Module, device: torch.device) -> int:
    """Bytes of the gradients that exist now."""
    return bytes_of([parameter.grad for parameter in model.parameters()], device)


def optimizer_state_bytes(training: Training) -> int:
    """Bytes of the tensors that the optimizer keeps between steps."""
    return bytes_of([dict(state) for state in training.optimizer.state.values()], training.device)
