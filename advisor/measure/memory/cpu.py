"""Peak memory of a step on the CPU, a device like any other: live tensor storage, to the byte.

Two instruments run at once. The dispatch mode knows what existed before the step, raises at the limit and names
what lives at the end of a phase. The allocation log knows what operations take inside themselves. The peak is what
existed before, plus the log's running sum, less what existed before and was freed meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from advisor.errors import DeviceOutOfMemoryError
from advisor.measure.measurement import MemoryMeasurement
from advisor.measure.memory.allocation_log import AllocationLog
from advisor.measure.memory.live_storage import LiveStorages
from advisor.measure.memory.meter import breakdown, gradient_bytes, listening
from advisor.measure.memory.storages import HostData, living_tensors, tensors_in, view_bytes
from advisor.measure.memory.timeline import MemoryTimeline, note_span, timeline_of
from advisor.text.units import format_bytes
from advisor.training.chunking import telling_of_chunks
from advisor.training.live_bytes import counting_with
from advisor.training.training import Phase

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["CpuMemory", "ResidentPeak"]

_PEAK = "VmHWM:"


class CpuMemory:
    """The memory meter of the CPU; ``host_data`` is no memory of the training."""

    def __init__(self, device: torch.device, limit_bytes: int, host_data: HostData) -> None:
        self._device = device
        self._limit_bytes = limit_bytes
        self._host_data = host_data
        self.timeline: MemoryTimeline | None = None

    def __enter__(self) -> CpuMemory:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    @contextlib.contextmanager
    def guarding(self, batch: Any) -> Iterator[None]:
        """Steps under the limit, without the allocation log."""
        with self._following(batch):
            yield

    def measured_step(self, training: Training, batch: Any) -> tuple[torch.Tensor, MemoryMeasurement]:
        """One step under the limit, with its figures."""
        phases: list[tuple[int, Phase]] = []
        in_chunks: list[tuple[int, int]] = []
        activations = gradients = 0
        log = AllocationLog()
        with self._following(batch) as storages:
            before = storages.live_bytes

            def listen(phase: Phase) -> None:
                nonlocal activations, gradients
                ended = phases[-1][1] if phases else Phase.IDLE
                if ended is Phase.FORWARD:
                    activations = max(activations, storages.born_in(storages.epoch))
                if ended is Phase.BACKWARD:
                    gradients = max(gradients, gradient_bytes(training))
                storages.next_epoch()
                phases.append((time.time_ns(), phase))

            def hear(begins: bool) -> None:
                note_span(in_chunks, time.time_ns(), begins=begins)

            storages.next_epoch()
            with log, listening(training, listen), telling_of_chunks(hear):
                loss = training.step(batch)
        freed = [(moment, -size) for moment, size in storages.deaths_of_old]
        self.timeline = timeline_of(before, sorted(log.events + freed), phases, in_chunks)
        peaks = self.timeline.peaks()
        peak = max(peaks.values())
        if peak > self._limit_bytes:
            raise DeviceOutOfMemoryError(
                f"memory must stay within {format_bytes(self._limit_bytes)}, but its peak was {format_bytes(peak)}"
            )
        memory = MemoryMeasurement(
            peak_bytes=peak,
            peak_allocated_bytes=peak,
            peak_reserved_bytes=None,
            device_used_bytes=None,
            allocation_retries=None,
            forward_peak_bytes=peaks.get(Phase.FORWARD, 0),
            backward_peak_bytes=peaks.get(Phase.BACKWARD, 0),
            optimizer_peak_bytes=peaks.get(Phase.OPTIMIZER, 0),
            breakdown=breakdown(training, gradients=gradients, activations=activations),
        )
        return loss, memory

    @contextlib.contextmanager
    def watching(self) -> Iterator[Callable[[MemoryMeasurement], MemoryMeasurement]]:
        """Adds what the process holds; live tensor storage is counted to the byte in one step, and steps are alike."""
        resident = ResidentPeak()
        resident.restart()
        yield lambda memory: msgspec.structs.replace(memory, peak_resident_bytes=resident.peak_bytes())

    @contextlib.contextmanager
    def _following(self, batch: Any) -> Iterator[LiveStorages]:
        storages = LiveStorages(self._device, self._host_data, self._limit_bytes)
        self._host_data.add(batch, self._device)  # counted as the copy that an accelerator would hold
        storages.add_constant(view_bytes(tensors_in(batch)))
        storages.add(living_tensors())
        with counting_with(lambda: storages.live_bytes), storages:
            yield storages
        if storages.exceeded is not None:
            raise storages.exceeded


class ResidentPeak:
    """The largest resident set from :meth:`restart` on, by this process's own entry of ``/proc``."""

    def __init__(self, root: Path = Path("/proc/self")) -> None:
        self._root = root

    def restart(self) -> None:
        """Forget what was held before; where that is not permitted, the peak is the one since the process started."""
        with contextlib.suppress(OSError):
            (self._root / "clear_refs").write_text("5")

    def peak_bytes(self) -> int | None:
        """The peak, the interpreter and its libraries included; ``None`` where the system does not tell."""
        with contextlib.suppress(OSError):
            for line in (self._root / "status").read_text().splitlines():
                if line.startswith(_PEAK):
                    return int(line.split()[1]) * 1024
        return None
