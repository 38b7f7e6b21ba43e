from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from advisor.errors import DeviceOutOfMemoryError, MethodRefusedError, StageLostError, WorkloadError
from advisor.trial.outcome import Outcome
from advisor.trial.result import TrialResult
from advisor.trial.worker.failure import (
    AllocatorRefusals,
    DivergedError,
    at_batch,
    failed_result,
    is_out_of_memory,
    is_secondary,
)
from tests.trial.specs import spec

CPU = torch.device("cpu")
GPU = torch.device("cuda:0")

_NCCL_2_15 = "NCCL AllReduce failed: unhandled cuda error \nNCCL Last Error: "
"""From torch 2.15 on, in an error that is of no class of its own."""


def result_of(
    error: BaseException, device: torch.device = GPU, free: int = 0, refusals: AllocatorRefusals | None = None
) -> TrialResult:
    return failed_result(spec(device=str(device)), error, refusals=refusals, free_device_bytes=lambda: free)


@pytest.mark.parametrize(
    ("error", "device", "free", "outcome"),
    [
        (DeviceOutOfMemoryError("memory must stay within 1.00 GiB"), CPU, 0, Outcome.OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), GPU, 0, Outcome.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), CPU, 0, Outcome.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), GPU, 0, Outcome.HOST_OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), GPU, 10 * 2**30, Outcome.HOST_OUT_OF_MEMORY),  # pinned memory
        (RuntimeError("CUDA error: out of memory"), GPU, 2**20, Outcome.OUT_OF_MEMORY),
        (RuntimeError("Triton Error [CUDA]: out of memory"), GPU, 2**20, Outcome.OUT_OF_MEMORY),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), GPU, 0, Outcome.OUT_OF_MEMORY),
        (
            RuntimeError(
                'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/c10/cuda/CUDACachingAllocator.cpp":1165, please'
            ),
            GPU,
            10 * 2**30,  # the limit is below what is free
            Outcome.OUT_OF_MEMORY,
        ),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
            GPU,
            0,
            Outcome.OUT_OF_MEMORY,
        ),
        (dist.DistBackendError("Last error: Cuda failure 2 'out of memory'"), GPU, 0, Outcome.OUT_OF_MEMORY),
        (RuntimeError(f"{_NCCL_2_15}Cuda failure 2 'out of memory'"), GPU, 0, Outcome.OUT_OF_MEMORY),
        (MemoryError(), CPU, 0, Outcome.HOST_OUT_OF_MEMORY),
        (DivergedError("the loss became nan at step 3"), CPU, 0, Outcome.DIVERGED),
        (MethodRefusedError("no blocks"), CPU, 0, Outcome.REFUSED),
        (WorkloadError("the loss must be a scalar"), CPU, 0, Outcome.FAILED),
        (RuntimeError("shapes do not match"), CPU, 0, Outcome.FAILED),
        (SystemExit(0), CPU, 0, Outcome.FAILED),
    ],
)
def test_an_exception_has_its_outcome(error: BaseException, device: torch.device, free: int, outcome: Outcome) -> None:
    result = result_of(error, device, free)
    assert result.outcome is outcome
    assert result.reason


def test_a_device_without_room_for_a_context_cannot_be_asked_what_is_free() -> None:
    def free() -> int:
        raise RuntimeError("CUDA error: out of memory")

    error = RuntimeError("CUDA error: out of memory")
    assert failed_result(spec(device=str(GPU)), error, free_device_bytes=free).outcome is (Outcome.OUT_OF_MEMORY)


def test_the_words_out_of_memory_in_a_users_error_are_no_evidence() -> None:
    assert result_of(ValueError("my cache is out of memory slots")).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "words",
    [
        "GET was unable to find an engine to execute this computation",
        "FIND was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ],
)
def test_a_library_that_got_no_memory_says_something_else_and_the_allocators_counter_tells(words: str) -> None:
    count = 3  # earlier trials of the process
    refusals = AllocatorRefusals(GPU, lambda device: count)
    error = RuntimeError(words)
    assert result_of(error, refusals=refusals).outcome is Outcome.FAILED
    assert not is_out_of_memory(error, GPU, refusals)
    count = 4
    assert result_of(error, refusals=refusals).outcome is Outcome.OUT_OF_MEMORY
    assert is_out_of_memory(error, GPU, refusals)
    assert result_of(RuntimeError("shapes do not match"), refusals=refusals).outcome is Outcome.FAILED


def test_the_cpu_has_no_such_counter() -> None:
    assert not AllocatorRefusals(CPU).grown()


def test_an_error_that_the_users_code_wrapped_is_still_found() -> None:
    error = RuntimeError("forward failed")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    assert result_of(error).outcome is Outcome.OUT_OF_MEMORY
    assert is_out_of_memory(error, GPU)


def test_the_result_names_a_batch_that_is_not_the_trials_own() -> None:
    """Trap: "batch 2: failed (only supports up to 100 samples)", of a profiling run that had grown to 128."""
    error = RuntimeError("only supports up to 100 samples")
    assert result_of(error).failed_at is None
    at_batch(error, 128)
    assert result_of(error).reason == "RuntimeError: only supports up to 100 samples (at batch 128)"
    assert result_of(error).failed_at == 128


def test_a_workload_error_of_a_larger_batch_names_it_too() -> None:
    error = WorkloadError("make_batch(128) raised IndexError", "Traceback ...\n")
    at_batch(error, 128)
    assert result_of(error).failed_at == 128


def test_the_reason_names_the_limit() -> None:
    assert "1.00 GiB" in result_of(torch.OutOfMemoryError("CUDA out of memory.\nmore lines")).reason
    assert "more lines" not in result_of(torch.OutOfMemoryError("CUDA out of memory.\nmore lines")).reason


def test_a_workload_error_brings_the_users_traceback() -> None:
    result = result_of(WorkloadError("model.py must import without an exception", "Traceback ...\n"))
    assert result.traceback_text == "Traceback ...\n"
    assert result.reason == "model.py must import without an exception"


_CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34223"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(_CLOSED),
        dist.DistBackendError("NCCL error: remote process exited or there was a network error"),
        RuntimeError(f"{_NCCL_2_15}remote process exited"),
        RuntimeError("NCCL operation timed out"),
        ConnectionResetError("Connection reset by peer"),
        StageLostError("every stage of a pipeline must compute its part of the loss, but stage 1 raised KeyError: 3"),
    ],
)
def test_a_connection_that_ended_is_rarely_the_cause(error: Exception) -> None:
    assert is_secondary(error)
    wrapped = RuntimeError("the user's own words")
    wrapped.__cause__ = error
    assert is_secondary(wrapped)
    assert result_of(error).outcome is Outcome.FAILED


def test_an_error_of_the_users_own_is_a_cause() -> None:
    assert not is_secondary(ValueError("connection closed by peer"))
    assert not is_secondary(RuntimeError("shapes do not match"))
