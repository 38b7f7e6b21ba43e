"""How much memory trials may take follows from what is free, what was asked for and what this process holds."""

import msgspec
import pytest

from advisor.errors import OptionError
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.session.setup.limits import memory_budget

GIB = 2**30
GPU = Hardware(
    kind=DeviceKind.CUDA,
    device="cuda:0",
    name="a GPU",
    memory_bytes=80 * GIB,
    free_bytes=79 * GIB,
    host_memory_bytes=100 * GIB,
    host_free_bytes=90 * GIB,
    host_cores=8,
)


def test_without_a_limit_trials_may_take_what_is_free_less_the_cuda_context() -> None:
    budget = memory_budget(GPU, None)
    assert 78 * GIB < budget.limit_bytes < 79 * GIB
    assert budget.notes == ()


def test_a_limit_is_kept_to_the_byte() -> None:
    assert memory_budget(GPU, 8 * GIB).limit_bytes == 8 * GIB


def test_a_limit_above_what_is_free_is_lowered_and_said() -> None:
    budget = memory_budget(GPU, 100 * GIB)
    assert budget.limit_bytes < 79 * GIB
    assert "exceeds the free memory of" in budget.notes[0]


def test_what_this_process_holds_counts_against_a_limit_for_the_whole_process() -> None:
    holding = msgspec.structs.replace(GPU, held_bytes=3 * GIB, free_bytes=76 * GIB)
    budget = memory_budget(holding, 8 * GIB)
    assert budget.limit_bytes == 5 * GIB
    assert "already holds 3.00 GiB" in budget.notes[0]
    assert "5.00 GiB are left" in budget.notes[0]


def test_a_process_that_holds_the_whole_limit_cannot_tune() -> None:
    holding = msgspec.structs.replace(GPU, held_bytes=9 * GIB)
    with pytest.raises(OptionError, match="raise --memory-limit"):
        memory_budget(holding, 8 * GIB)


def test_trials_on_a_cpu_leave_memory_to_the_rest_of_the_machine() -> None:
    cpu = msgspec.structs.replace(GPU, kind=DeviceKind.CPU, device="cpu", free_bytes=10 * GIB)
    assert memory_budget(cpu, None).limit_bytes == 8 * GIB
