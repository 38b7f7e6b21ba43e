"""Trials on a CUDA device: the meter's figures, the limit, NVML, and what is left behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._pytree import tree_leaves

import advisor
from advisor.errors import HardwareError
from advisor.hardware.detect import choose_device, detect_hardware
from advisor.hardware.gpus import list_gpus
from advisor.hardware.hardware import DeviceKind
from advisor.measure.memory.cuda import CudaMemory, nvml_device
from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import ProbeTrial, SizeTrial, TimeTrial, Trial, TrialSpec
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.failure import AllocatorRefusals
from advisor.trial.worker.growing_batches import telling
from advisor.workload.workload import Stated, WorkloadKind, WorkloadSource
from tests.methods.tiny import text, training_of
from tests.session.test_library_call import StoppedError, StoppingBeforeTrials
from tests.session.workloads import tiny
from tests.trial.specs import my_children, spec

# What other libraries warn of depends on driver and device, which are not under test.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

TINY = Path(tiny.__file__)
MIB = 2**20
GIB = 2**30


def test_the_meters_figures_agree_with_the_allocator_and_with_each_other(cuda: torch.device) -> None:
    gc.collect()
    training = training_of("gpt2", device=cuda)
    apply_settings(training, [])
    with CudaMemory(cuda, 4 * GIB) as meter:
        training.step(text(64, seed=0))
        _, memory = meter.measured_step(training, text(64, seed=1))
        torch.cuda.reset_peak_memory_stats(cuda)
        training.step(text(64, seed=1))
        torch.cuda.synchronize(cuda)
        plain = torch.cuda.max_memory_allocated(cuda)
    assert memory.peak_allocated_bytes == pytest.approx(plain, rel=0.01)
    assert memory.peak_reserved_bytes is not None
    assert memory.peak_bytes == memory.peak_reserved_bytes >= memory.peak_allocated_bytes
    assert memory.peak_allocated_bytes == max(
        memory.forward_peak_bytes, memory.backward_peak_bytes, memory.optimizer_peak_bytes
    )
    assert memory.allocation_retries == 0
    assert meter.timeline is not None, "the allocator keeps a log"
    # The log has what was asked for, the counters what was given, in multiples of 512 bytes or a whole block, which
    # has up to 1 MiB more: four of them here, whatever else is in the peak.
    assert max(meter.timeline.peaks().values()) == pytest.approx(memory.peak_allocated_bytes, abs=4.5 * MIB)
    size = sum(parameter.numel() * 4 for parameter in training.model.parameters())
    assert memory.breakdown.parameters == memory.breakdown.gradients == size
    assert memory.breakdown.optimizer_state == pytest.approx(2 * size, rel=0.01)
    assert 0 < memory.breakdown.activations < memory.peak_allocated_bytes


def test_the_limit_is_enforced_by_the_allocator_and_lifted_afterwards(cuda: torch.device) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved(cuda) + 64 * MIB
    with CudaMemory(cuda, limit), pytest.raises(torch.OutOfMemoryError):
        torch.empty(128 * MIB, dtype=torch.uint8, device=cuda)
    assert torch.empty(128 * MIB, dtype=torch.uint8, device=cuda).nbytes == 128 * MIB


def test_nvml_and_torch_speak_of_the_same_device(cuda: torch.device) -> None:
    (gpu, *_) = list_gpus().gpus
    properties = torch.cuda.get_device_properties(cuda)
    assert gpu.name == properties.name
    assert gpu.compute_capability == torch.cuda.get_device_capability(cuda)
    assert gpu.uuid == f"GPU-{properties.uuid}"
    assert gpu.memory_bytes == pytest.approx(properties.total_memory, rel=0.05)
    assert 0 < gpu.free_bytes <= gpu.memory_bytes


def test_nvml_counts_energy(cuda: torch.device) -> None:
    device = nvml_device(cuda)
    assert device is not None
    before = device.energy_joules()
    if before is None:
        pytest.skip("this GPU has no energy counter")
    matrix = torch.randn(4096, 4096, device=cuda)
    for _ in range(200):
        matrix = (matrix @ matrix).clamp(-1, 1)
    torch.cuda.synchronize(cuda)
    after = device.energy_joules()
    assert after is not None
    assert after > before


def test_the_gpu_is_chosen_when_none_is_asked_for(cuda: torch.device) -> None:
    assert choose_device().device == "cuda:0"
    hardware = detect_hardware()
    assert hardware.kind is DeviceKind.CUDA
    assert hardware.device == "cuda:0"
    with pytest.raises(HardwareError, match="cuda:0"):
        detect_hardware("cuda:99")


def test_what_this_process_holds_on_the_gpu_comes_off_the_limit(cuda: torch.device, tmp_path: Path) -> None:
    held = torch.ones(300 * MIB, dtype=torch.uint8, device=cuda)
    progress = StoppingBeforeTrials()
    with pytest.raises(StoppedError):
        advisor.tune(TINY, memory_limit=8 * GIB, output=tmp_path / "out", progress=progress, device="cuda")
    assert any("already holds" in note and "are left for the trials" in note for note in progress.notes)
    assert detect_hardware("cuda").held_bytes >= held.nbytes


def on_cuda(micro_batch: int, limit_bytes: int, kind: type[Trial[Any]] = TimeTrial) -> TrialSpec:
    return spec(
        kind=kind,
        workload=WorkloadSource(kind=WorkloadKind.FILE, location=str(TINY), name="tiny", fingerprint="tiny"),
        policy=Policy(micro_batch=micro_batch),
        device="cuda:0",
        memory_limit_bytes=limit_bytes,
    )


@pytest.fixture(scope="module")
def runner(cuda: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


@pytest.mark.slow
def test_a_trial_records_time_memory_and_energy(runner: Runner) -> None:
    result = runner.run(on_cuda(64, 4 * GIB))
    assert result.outcome is Outcome.OK, result
    measured = result.measurement
    assert measured is not None
    assert measured.step_seconds_low <= measured.step_seconds <= measured.step_seconds_high
    assert measured.memory.peak_reserved_bytes is not None
    assert measured.memory.peak_reserved_bytes >= measured.memory.peak_allocated_bytes > 0
    assert measured.memory.allocation_retries == 0
    used = measured.memory.device_used_bytes
    assert used is None or used > measured.memory.peak_allocated_bytes, "the context comes on top"
    assert measured.joules_per_step is None or measured.joules_per_step > 0


@pytest.mark.slow
def test_a_batch_above_the_limit_is_out_of_memory_and_the_next_trial_is_not(runner: Runner) -> None:
    refused = runner.run(on_cuda(8192, 512 * MIB))
    assert refused.outcome is Outcome.OUT_OF_MEMORY, refused
    assert "512 MiB" in refused.reason
    assert runner.run(on_cuda(32, 4 * GIB)).outcome is Outcome.OK


@pytest.mark.slow
def test_a_warm_worker_serves_on_because_memory_comes_back(runner: Runner) -> None:
    first = runner.run(on_cuda(16, 4 * GIB))
    second = runner.run(on_cuda(24, 4 * GIB))
    assert first.outcome is second.outcome is Outcome.OK
    assert second.warm


@pytest.mark.slow
def test_what_the_first_trial_of_a_process_loads_is_no_leak(cuda: torch.device, tmp_path: Path) -> None:
    with Runner(tmp_path) as fresh:
        assert not fresh.run(on_cuda(16, 4 * GIB)).warm
        assert fresh.run(on_cuda(24, 4 * GIB)).warm


@pytest.mark.slow
def test_batches_wait_in_page_locked_memory(cuda: torch.device) -> None:
    trial = on_cuda(8, 4 * GIB)
    bench = Bench(trial, lambda text: None, AllocatorRefusals(cuda))
    leaves = [leaf for batch in bench.data.batches(8) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    assert leaves
    assert all(leaf.is_pinned() for leaf in leaves)
    gc.unfreeze()


def test_the_allocator_counts_what_it_refuses(cuda: torch.device) -> None:
    torch.ones(1, device=cuda)
    refusals = AllocatorRefusals(cuda)
    assert not refusals.grown()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**44, dtype=torch.uint8, device=cuda)
    assert refusals.grown()


@pytest.mark.slow
def test_the_largest_batch_of_a_sizing_says_something_about_large_ones(runner: Runner) -> None:
    trial = on_cuda(2, 4 * GIB, SizeTrial)
    trial = msgspec.structs.replace(trial, measure_seconds=60.0)
    sizing = runner.run(trial).sizing
    assert sizing is not None
    assert telling(sizing.points[-1], trial)


@pytest.mark.slow
def test_memory_grows_with_the_batch(runner: Runner) -> None:
    sizing = runner.run(on_cuda(256, 4 * GIB, SizeTrial)).sizing
    assert sizing is not None
    first, second, *_ = sizing.points
    assert second.micro_batch > first.micro_batch
    assert second.memory.peak_allocated_bytes > first.memory.peak_allocated_bytes


@pytest.mark.slow
def test_two_short_runs_foretell_the_memory_of_a_large_batch(runner: Runner) -> None:
    short = runner.run(msgspec.structs.replace(on_cuda(64, 4 * GIB, SizeTrial), largest_batch=128))
    large = runner.run(on_cuda(1024, 16 * GIB)).measurement
    assert short.prediction is not None
    assert large is not None
    assert short.prediction.peak(1024) == pytest.approx(large.memory.peak_allocated_bytes, rel=0.05)


@pytest.mark.slow
def test_facts_of_the_device_are_learned(runner: Runner) -> None:
    facts = runner.run(on_cuda(2, 4 * GIB, ProbeTrial)).facts
    assert facts is not None
    assert facts.matmul_flops_per_second["float32"] > 1e11
    assert facts.block_count == 6


@pytest.mark.usefixtures("values")
def test_a_method_applied_from_a_policy_trains_on_the_gpu(cuda: torch.device) -> None:
    policy = Policy(methods=(use("checkpoint", every=1),), micro_batch=8)
    training = advisor.apply_policy(policy, tiny.build_model())
    assert training.device.type == "cuda", "a GPU is the default where there is one"
    torch.manual_seed(0)
    batch = tiny.make_batch(20)
    losses = [float(training.step(batch)) for _ in range(3)]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_trials_of_a_model_from_a_config_share_a_copy_and_measure_the_same(cuda: torch.device, tmp_path: Path) -> None:
    source = WorkloadSource(
        kind=WorkloadKind.HUGGING_FACE,
        location="distilbert",
        name="distilbert",
        fingerprint="1",
        stated=Stated(tokens=32),
    )
    plain = spec(device=str(cuda), memory_limit_bytes=3 * GIB, measure_seconds=0.2, micro_batch=1)
    with Runner(tmp_path / "study") as runner:
        trials = [msgspec.structs.replace(plain, workload=source, repeat=repeat) for repeat in range(3)]
        results: list[Any] = [runner.run(trial) for trial in trials]
    assert [result.outcome for result in results] == [Outcome.OK] * 3, results
    assert [result.warm for result in results] == [False, True, True], "nothing was left behind"
    first, *others = [result.measurement for result in results]
    for other in others:
        assert other.loss_trace[:3] == pytest.approx(first.loss_trace[:3], rel=1e-3)
        assert other.memory.peak_allocated_bytes == first.memory.peak_allocated_bytes
        assert other.memory.breakdown == first.memory.breakdown
