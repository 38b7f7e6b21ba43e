from __future__ import annotations

import contextlib

import pytest
import torch

from advisor.errors import DeviceOutOfMemoryError
from advisor.measure.memory.cpu import CpuMemory
from advisor.training.training import Training
from tests.measure.tiny import fresh_host_data, meter, tiny_training

_FLOAT = 4
_PARAMETERS = _FLOAT * (8 * 64 + 64 + 2 * 64 + 64 * 4 + 4)


def test_the_breakdown_names_every_category() -> None:
    memory_meter = meter()
    training = tiny_training()
    batch = torch.randn(32, 8)
    training.step(batch)
    _, memory = memory_meter.measured_step(training, batch)
    assert memory.breakdown.parameters == _PARAMETERS
    assert memory.breakdown.buffers == _FLOAT * 2 * 64 + 8  # running mean and variance, and a counter
    assert memory.breakdown.gradients == _PARAMETERS
    assert 2 * _PARAMETERS <= memory.breakdown.optimizer_state <= 2 * _PARAMETERS + 6 * _FLOAT  # and step counters
    kept = _FLOAT * 32 * (64 + 64)  # what goes into the norm and into the last layer
    assert kept <= memory.breakdown.activations <= 1.1 * kept
    assert memory.peak_bytes == memory.peak_allocated_bytes
    assert memory.peak_bytes == max(memory.forward_peak_bytes, memory.backward_peak_bytes, memory.optimizer_peak_bytes)


def test_the_optimizer_is_the_peak_of_a_tiny_batch_only() -> None:
    memory_meter = meter()
    training = tiny_training(width=256)
    for samples, expected in ((2, True), (2048, False)):
        batch = torch.randn(samples, 8)
        training.step(batch)
        _, memory = memory_meter.measured_step(training, batch)
        assert memory.optimizer_is_peak is expected


def test_everything_alive_counts_also_what_no_module_knows() -> None:
    peaks = []
    for extra in (0, 1_000_000):
        memory_meter = meter()
        training = tiny_training()
        cache = torch.zeros(extra, dtype=torch.uint8)  # as a model's global mask or table
        batch = torch.randn(4, 8)
        training.step(batch)
        peaks.append(memory_meter.measured_step(training, batch)[1].peak_bytes)
        del cache
    assert peaks[1] - peaks[0] == 1_000_000


def test_the_batch_counts_as_its_copy_and_waiting_batches_do_not() -> None:
    data = torch.randn(1_000_000, 8)
    host_data = fresh_host_data()
    memory_meter = CpuMemory(data.device, 2**40, host_data)
    training = tiny_training()
    waiting = torch.randn(1_000_000, 8)
    training.step(data[:16])
    host_data.add(waiting, training.device)
    _, memory = memory_meter.measured_step(training, data[:16])
    assert memory.peak_bytes < 1_000_000


def test_measuring_changes_nothing_in_the_training() -> None:
    losses = []
    for measured in (False, True):
        training = tiny_training()
        torch.manual_seed(1)
        batches = [torch.randn(16, 8) for _ in range(3)]
        memory_meter = meter()
        trace = [training.step(batches[0])]
        if measured:
            trace.append(memory_meter.measured_step(training, batches[1])[0])
        else:
            trace.append(training.step(batches[1]))
        trace.append(training.step(batches[2]))
        losses.append([loss.item() for loss in trace])
        assert training.phase_listener is None
    assert losses[0] == losses[1]


def test_a_second_measurement_of_the_same_step_agrees() -> None:
    memory_meter = meter()
    training = tiny_training()
    batch = torch.randn(64, 8)
    training.step(batch)
    first = memory_meter.measured_step(training, batch)[1]
    assert memory_meter.measured_step(training, batch)[1] == first


def test_scratch_inside_an_operation_counts_against_the_limit() -> None:
    """A sort takes room that its result does not show."""
    training = Training(
        torch.nn.Linear(64, 1), compute_loss=lambda model, batch: model(batch).sort(dim=0).values.mean()
    )
    batch = torch.randn(20_000, 64)
    training.step(batch)
    _, memory = meter().measured_step(training, batch)
    tight = meter(limit_bytes=memory.peak_bytes - 1)
    with pytest.raises(DeviceOutOfMemoryError, match="its peak was"):
        tight.measured_step(training, batch)
    meter(limit_bytes=memory.peak_bytes).measured_step(training, batch)


def test_a_guarded_step_raises_at_the_limit() -> None:
    training = tiny_training()
    batch = torch.randn(10_000, 8)
    with pytest.raises(DeviceOutOfMemoryError), meter(limit_bytes=1_000_000).guarding(batch):
        training.step(batch)


def test_a_model_that_swallows_the_error_does_not_escape_the_limit() -> None:
    class Greedy(torch.nn.Linear):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(Exception):
                torch.zeros(10_000_000)
            return super().forward(batch)

    training = Training(Greedy(8, 1), compute_loss=lambda model, batch: model(batch).mean())
    with pytest.raises(DeviceOutOfMemoryError), meter(limit_bytes=1_000_000).guarding(torch.zeros(1, 8)) as _:
        training.step(torch.zeros(1, 8))


def test_accumulation_keeps_the_activations_of_one_micro_batch() -> None:
    memory_meter = meter()
    training = tiny_training()
    training.micro_batch = 32
    batch = torch.randn(96, 8)
    training.step(batch)
    accumulated = memory_meter.measured_step(training, batch)[1]
    training.micro_batch = None
    whole = memory_meter.measured_step(training, batch)[1]
    assert accumulated.breakdown.activations < whole.breakdown.activations / 2
    assert accumulated.breakdown.gradients == whole.breakdown.gradients
