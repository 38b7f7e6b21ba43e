"""Peak memory of a step on a CUDA device, by the caching allocator's own counters and by NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from advisor.measure.measurement import MemoryMeasurement
from advisor.measure.memory.cuda_history import CudaHistory
from advisor.measure.memory.meter import breakdown, gradient_bytes, listening
from advisor.measure.memory.storages import tensors_in, view_bytes
from advisor.measure.memory.timeline import MemoryTimeline
from advisor.measure.speed.energy import NvmlDevice
from advisor.training.chunking import telling_of_chunks
from advisor.training.training import Phase

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["CudaMemory", "held_workspace_bytes", "nvml_device"]


def nvml_device(device: torch.device) -> NvmlDevice | None:
    """The NVML view of a torch device; ``None`` for the CPU."""
    if device.type != "cuda":
        return None
    return NvmlDevice(str(torch.cuda.get_device_properties(device).uuid))


def held_workspace_bytes(device: torch.device, cuda: Any = torch.cuda, library: Any = torch._C) -> int:
    """Bytes of all cuBLAS workspaces of this process on a CUDA device, on which nothing runs.

    They are no tensors, but in every peak that the allocator counts. Each thread that multiplies has one: the caller's
    in the forward pass, autograd's in the backward pass. Both have them again afterwards, perhaps in other places. From
    torch 2.15 on none is held: each product has its own while it runs.

    Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of PyTorch.
    """
    clear = getattr(library, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        return 0
    before = int(cuda.memory_allocated(device))
    clear()
    held = before - int(cuda.memory_allocated(device))
    if held > 0:
        # At once, in this thread and in the one of autograd: the next step would count them among its activations.
        matrix = torch.ones(16, 16, device=device, requires_grad=True)
        torch.autograd.grad((matrix @ matrix).sum(), matrix)
    return held


class CudaMemory:
    """The memory meter of a CUDA device.

    The limit is set on the allocator, which counts reserved bytes: what the process really takes, apart from the
    CUDA context.

    Args:
        device: The device.
        limit_bytes: Most reserved bytes.
        cuda: ``torch.cuda``, or an object with the same functions.
        nvml: NVML's view of the device; found by default.
        workspace_bytes: Tells the bytes that cuBLAS holds.
    """

    def __init__(
        self,
        device: torch.device,
        limit_bytes: int,
        cuda: Any = torch.cuda,
        nvml: NvmlDevice | None = None,
        workspace_bytes: Callable[[torch.device], int] = held_workspace_bytes,
    ) -> None:
        self._device = device
        self._limit_bytes = limit_bytes
        self._cuda = cuda
        self._workspace_bytes = workspace_bytes
        self.timeline: MemoryTimeline | None = None
        self._nvml = nvml if nvml is not None or cuda is not torch.cuda else nvml_device(device)

    def __enter__(self) -> CudaMemory:
        self._cuda.empty_cache()  # what an earlier trial left cached is not this trial's
        total = self._cuda.get_device_properties(self._device).total_memory
        self._cuda.set_per_process_memory_fraction(min(1.0, self._limit_bytes / total), self._device)
        return self

    def __exit__(self, *exception: object) -> None:
        self._cuda.set_per_process_memory_fraction(1.0, self._device)

    def guarding(self, batch: Any) -> contextlib.AbstractContextManager[None]:
        """Nothing to add: the allocator enforces the limit on every step."""
        return contextlib.nullcontext()

    def measured_step(self, training: Training, batch: Any) -> tuple[torch.Tensor, MemoryMeasurement]:
        """One step with its figures."""
        peaks = _PhasePeaks(self._cuda, self._device)
        activations = gradients = at_forward = 0
        # Each pass copies its micro-batch to the device, which is no activation.
        moved = max(view_bytes(self._elsewhere(chunk)) for chunk in training.split(batch))

        def listen(phase: Phase) -> None:
            nonlocal activations, gradients, at_forward
            now = self._cuda.memory_allocated(self._device)
            if peaks.phase is Phase.FORWARD:
                activations = max(activations, now - at_forward - moved)
            if peaks.phase is Phase.BACKWARD:
                gradients = max(gradients, gradient_bytes(training))
            if phase is Phase.FORWARD:
                at_forward = now
            peaks.begin(phase)
            history.begin(phase)

        self._cuda.synchronize(self._device)
        retries = self._retries()
        peaks.begin(Phase.IDLE)
        history = CudaHistory(self._cuda, self._device)
        try:
            with listening(training, listen), telling_of_chunks(history.hear):
                loss = training.step(batch)
        finally:
            self.timeline = history.close()
        self._cuda.synchronize(self._device)
        peaks.begin(Phase.IDLE)
        return loss, MemoryMeasurement(
            peak_bytes=peaks.reserved,
            peak_allocated_bytes=max(peaks.allocated.values()),
            peak_reserved_bytes=peaks.reserved,
            device_used_bytes=self._nvml.used_bytes() if self._nvml else None,
            allocation_retries=self._retries() - retries,
            forward_peak_bytes=peaks.allocated.get(Phase.FORWARD, 0),
            backward_peak_bytes=peaks.allocated.get(Phase.BACKWARD, 0),
            optimizer_peak_bytes=peaks.allocated.get(Phase.OPTIMIZER, 0),
            breakdown=breakdown(training, gradients=gradients, activations=activations),
        )

    @contextlib.contextmanager
    def watching(self) -> Iterator[Callable[[MemoryMeasurement], MemoryMeasurement]]:
        """Steps that are not measured themselves, such as timed ones; see :class:`MemoryMeter`.

        The reserved peak of a single step is not the last word: fragments pile up over steps, and an optimizer may
        work in another order later.
        """
        self._cuda.synchronize(self._device)
        self._cuda.reset_peak_memory_stats(self._device)
        retries = self._retries()

        def completed(memory: MemoryMeasurement) -> MemoryMeasurement:
            assert memory.peak_reserved_bytes is not None
            assert memory.allocation_retries is not None
            reserved = max(memory.peak_reserved_bytes, int(self._cuda.max_memory_reserved(self._device)))
            return msgspec.structs.replace(
                memory,
                peak_bytes=reserved,
                peak_reserved_bytes=reserved,
                allocation_retries=memory.allocation_retries + self._retries() - retries,
                # Asking moves them, after which steps may reserve more than those of a training: no step may follow.
                workspace_bytes=self._workspace_bytes(self._device),
            )

        yield completed

    def _elsewhere(self, chunk: Any) -> Iterator[torch.Tensor]:
        return (tensor for tensor in tensors_in(chunk) if tensor.device != self._device)

    def _retries(self) -> int:
        return int(self._cuda.memory_stats(self._device).get("num_alloc_retries", 0))


class _PhasePeaks:
    """Peaks by phase: the allocator's peak counters are read and reset at every change of phase."""

    def __init__(self, cuda: Any, device: torch.device) -> None:
        self._cuda = cuda
        self._device = device
        self.phase: Phase | None = None
        self.allocated: dict[Phase, int] = {}
        self.reserved = 0

    def begin(self, phase: Phase) -> None:
        # The caching allocator counts when the host asks for memory, not when a kernel runs: no synchronization.
        if self.phase is not None:
            peak = int(self._cuda.max_memory_allocated(self._device))
            self.allocated[self.phase] = max(self.allocated.get(self.phase, 0), peak)
            self.reserved = max(self.reserved, int(self._cuda.max_memory_reserved(self._device)))
        self._cuda.reset_peak_memory_stats(self._device)
        self.phase = phase
