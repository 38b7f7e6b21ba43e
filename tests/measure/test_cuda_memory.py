"""The logic of the CUDA meter, on a stand-in for ``torch.cuda``: no GPU is involved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from advisor.measure.memory.cuda import CudaMemory
from advisor.training.chunking import chunks
from advisor.training.training import Phase
from tests.measure.tiny import tiny_training

GPU = torch.device("cuda:0")


class FakeHistory:
    """The allocator's log of changes."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.recording: str | None = None

    def note(self, action: str, size: int) -> None:
        if self.recording is not None:
            self.entries.append({"action": action, "size": size})

    def _record_memory_history(
        self,
        enabled: str | None,
        *,
        context: None = None,
        stacks: str = "all",
        max_entries: int = 0,
        clear_history: bool = False,
    ) -> None:
        self.recording = enabled
        if clear_history:
            self.entries = []

    def _snapshot(self, device: torch.device) -> dict[str, Any]:
        return {"device_traces": [self.entries]}


class FakeCuda:
    """An allocator whose peaks follow what a test allocates."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.retries = 7
        self.fraction = 1.0
        self.emptied = 0
        self.counted = {"allocated": 100, "freed": 90}
        self.memory = FakeHistory()

    def change(self, allocated: int, reserved: int = 0) -> None:
        if allocated:
            self.counted["allocated" if allocated > 0 else "freed"] += 1
            self.memory.note("alloc" if allocated > 0 else "free_requested", abs(allocated))
        if reserved:
            self.memory.note("segment_alloc" if reserved > 0 else "segment_free", abs(reserved))
        self.allocated += allocated
        self.reserved += reserved
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(total_memory=80 * 2**30)

    def set_per_process_memory_fraction(self, fraction: float, device: torch.device) -> None:
        self.fraction = fraction

    def empty_cache(self) -> None:
        self.emptied += 1

    def synchronize(self, device: torch.device) -> None: ...

    def memory_stats(self, device: torch.device) -> dict[str, int]:
        counted = {f"allocation.all.{name}": count for name, count in self.counted.items()}
        return {"num_alloc_retries": self.retries, **counted}

    def memory_allocated(self, device: torch.device) -> int:
        return self.allocated

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.peak_allocated

    def max_memory_reserved(self, device: torch.device) -> int:
        return self.peak_reserved

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved


class Scripted:
    """A training whose phases allocate on the fake."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        real = tiny_training()
        self.model, self.optimizer, self.device = real.model, real.optimizer, GPU
        self.phase_listener: Any = None

    def split(self, batch: Any) -> list[Any]:
        return [batch, batch]

    def step(self, batch: object) -> torch.Tensor:
        for _ in range(2):
            self.phase_listener(Phase.FORWARD)
            self.cuda.change(+300, +500)
            self.phase_listener(Phase.BACKWARD)
            self.cuda.change(+400, +500)
            self.cuda.change(-700)
        self.phase_listener(Phase.OPTIMIZER)
        self.cuda.retries += 2
        self.cuda.change(+150)
        self.cuda.change(-150)
        self.phase_listener(Phase.IDLE)
        return torch.zeros(())


def test_peaks_are_kept_apart_by_phase_and_reserved_over_all() -> None:
    cuda = FakeCuda()
    cuda.change(1000, 2000)
    nvml: Any = SimpleNamespace(used_bytes=lambda: 12345)
    with CudaMemory(GPU, 8 * 2**30, cuda, nvml) as meter:
        _, memory = meter.measured_step(Scripted(cuda), None)  # type: ignore[arg-type]
    assert memory.forward_peak_bytes == 1300
    assert memory.backward_peak_bytes == 1700
    assert memory.optimizer_peak_bytes == 1150
    assert memory.peak_allocated_bytes == 1700
    assert memory.peak_bytes == memory.peak_reserved_bytes == 4000
    assert memory.allocation_retries == 2
    assert memory.device_used_bytes == 12345
    assert memory.breakdown.activations == 300


def test_the_batch_that_each_pass_brings_to_the_device_is_no_activation() -> None:
    cuda = FakeCuda()
    batch = {"there": torch.zeros(10), "here": torch.zeros(30, device="meta")}
    with CudaMemory(torch.device("meta"), 8 * 2**30, cuda) as meter:
        _, memory = meter.measured_step(Scripted(cuda), batch)  # type: ignore[arg-type]
    assert memory.breakdown.activations == 300 - 40


def test_what_cublas_holds_is_told_apart_from_tensors() -> None:
    cuda = FakeCuda()
    cuda.change(64, 64)
    asked: list[str] = []

    def workspace_bytes(device: torch.device) -> int:
        asked.append("moves them")
        return 64

    with CudaMemory(GPU, 8 * 2**30, cuda, workspace_bytes=workspace_bytes) as meter:
        _, memory = meter.measured_step(Scripted(cuda), None)  # type: ignore[arg-type]
        with meter.watching() as completed:
            assert asked == [], "the steps that follow find the workspaces where a training has them"
            memory = completed(memory)
    assert memory.workspace_bytes == 64
    assert memory.peak_allocated_bytes == 764
    assert memory.tensor_peak_bytes == 700


def measured(cuda: FakeCuda) -> CudaMemory:
    """A meter that has measured a step."""
    cuda.change(1000, 2000)
    with CudaMemory(GPU, 8 * 2**30, cuda) as meter:
        meter.measured_step(Scripted(cuda), None)  # type: ignore[arg-type]
    return meter


def test_the_allocators_log_is_the_timeline_of_the_step() -> None:
    cuda = FakeCuda()
    timeline = measured(cuda).timeline
    assert timeline is not None
    assert timeline.peaks() == {Phase.IDLE: 1000, Phase.FORWARD: 1300, Phase.BACKWARD: 1700, Phase.OPTIMIZER: 1150}
    assert timeline.changes == [0, *[0, 1, 0, 1, -1] * 2, 0, 1, -1, 0], "segments are no changes"
    assert cuda.memory.recording is None


def test_work_in_chunks_is_one_change_of_the_timeline() -> None:
    class InPieces(Scripted):
        def step(self, batch: object) -> torch.Tensor:
            for _ in chunks(torch.empty(0), 3 * 2**15):
                self.cuda.change(+50)
                self.cuda.change(-50)
            return super().step(batch)

    cuda = FakeCuda()
    with CudaMemory(GPU, 8 * 2**30, cuda) as meter:
        meter.measured_step(InPieces(cuda), None)  # type: ignore[arg-type]
    assert meter.timeline is not None
    assert meter.timeline.live[:3] == [0, 50, 0]
    assert meter.timeline.changes == [0, 1, -1, *[0, 1, 0, 1, -1] * 2, 0, 1, -1, 0]


def test_an_allocator_without_a_log_leaves_the_figures_as_they_are() -> None:
    class Silent(FakeHistory):
        def _record_memory_history(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("cudaMallocAsync does not yet support recordHistory")

    cuda = FakeCuda()
    cuda.memory = Silent()
    assert measured(cuda).timeline is None


def test_a_log_that_misses_something_is_no_timeline() -> None:
    """Such as one that was full, or that another thread's user cleared."""

    class Forgetful(FakeHistory):
        def _snapshot(self, device: torch.device) -> dict[str, Any]:
            return {"device_traces": [self.entries[1:]]}

    cuda = FakeCuda()
    cuda.memory = Forgetful()
    assert measured(cuda).timeline is None
    assert cuda.memory.recording is None


def test_a_step_that_fails_leaves_no_log_behind() -> None:
    class Failing(Scripted):
        def step(self, batch: object) -> torch.Tensor:
            super().step(batch)
            raise RuntimeError("a step that fails")

    cuda = FakeCuda()
    with CudaMemory(GPU, 8 * 2**30, cuda) as meter, pytest.raises(RuntimeError, match="a step that fails"):
        meter.measured_step(Failing(cuda), None)  # type: ignore[arg-type]
    assert cuda.memory.recording is None


def test_what_later_steps_reserve_belongs_to_the_figure() -> None:
    """The trap: fragments pile up, so that one step is no proof that the next ones stay below the limit."""
    cuda = FakeCuda()
    with CudaMemory(GPU, 8 * 2**30, cuda) as meter:
        _, measured = meter.measured_step(Scripted(cuda), None)  # type: ignore[arg-type]
        with meter.watching() as completed:
            cuda.change(0, +600)
            cuda.change(0, -600)
            cuda.retries += 3
            memory = completed(measured)
    assert memory.peak_bytes == memory.peak_reserved_bytes == measured.peak_bytes + 600
    assert memory.allocation_retries == 5
    assert memory.peak_allocated_bytes == measured.peak_allocated_bytes
    assert memory.breakdown == measured.breakdown


def test_what_was_reserved_before_the_later_steps_is_not_theirs() -> None:
    cuda = FakeCuda()
    with CudaMemory(GPU, 8 * 2**30, cuda) as meter:
        _, measured = meter.measured_step(Scripted(cuda), None)  # type: ignore[arg-type]
        cuda.change(0, +9000)
        cuda.change(0, -9000)
        with meter.watching() as completed:
            assert completed(measured) == measured


def test_an_earlier_peak_is_not_this_steps() -> None:
    cuda = FakeCuda()
    cuda.change(10_000, 10_000)
    cuda.change(-10_000, -10_000)
    with CudaMemory(GPU, 8 * 2**30, cuda) as meter:
        _, memory = meter.measured_step(Scripted(cuda), None)  # type: ignore[arg-type]
    assert memory.peak_allocated_bytes == 700
    assert memory.device_used_bytes is None


def test_the_limit_is_set_on_the_allocator_and_lifted_afterwards() -> None:
    cuda = FakeCuda()
    with CudaMemory(GPU, 20 * 2**30, cuda):
        assert cuda.fraction == 0.25
        assert cuda.emptied == 1
    assert cuda.fraction == 1.0


def test_a_limit_above_the_device_is_the_device() -> None:
    cuda = FakeCuda()
    with CudaMemory(GPU, 200 * 2**30, cuda):
        assert cuda.fraction == 1.0


def test_the_limit_is_lifted_after_an_error() -> None:
    cuda = FakeCuda()
    try:
        with CudaMemory(GPU, 20 * 2**30, cuda):
            raise torch.OutOfMemoryError
    except torch.OutOfMemoryError:
        assert cuda.fraction == 1.0
