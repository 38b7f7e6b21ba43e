"""What an allocator takes at a batch that nobody traced."""

from __future__ import annotations

import msgspec
import pytest
import torch

from advisor.phase import Phase
from advisor.predict.allocator import replay
from advisor.predict.cuda.reserved import AllocationLog, allocation_log, reserved
from advisor.predict.prediction import Affine, CudaDevice
from advisor.predict.trace.step_trace import StepTrace
from advisor.predict.trace.storage_log import LoggedCall
from advisor.predict.workspace.call import Like, WorkspaceCall

MIB = 2**20
H100 = CudaDevice(compute_capability=(9, 0), multiprocessors=132)


def trace(micro_batch: int, events: list[tuple[int, int]], begin: int = 1) -> StepTrace:
    return StepTrace(
        micro_batch=micro_batch,
        events=events,
        begin=begin,
        marks=[(begin, Phase.FORWARD)],
        categories={},
        operators=["empty"] * (1 + max(number for number, _ in events)),
        batch_bytes=0,
        notes=(),
        calls=[],
    )


def step(micro_batch: int) -> StepTrace:
    """A parameter of 32 MiB, and two results of 8 MiB for each sample, one after the other."""
    size = 8 * MIB * micro_batch
    return trace(micro_batch, [(0, 32 * MIB), (1, size), (2, size), (1, -size), (2, -size)])


def test_the_log_at_a_third_batch_is_what_a_trace_there_would_give() -> None:
    log = allocation_log(step(2), step(4), H100)
    assert log is not None
    assert log.at(7)[:2] == (step(7).events, 1)


def test_traces_of_different_steps_have_no_common_log() -> None:
    other = step(4)
    assert allocation_log(step(2), msgspec.structs.replace(other, events=other.events[:-1]), H100) is None
    freed_earlier = [other.events[index] for index in (0, 1, 3, 2, 4)]
    assert allocation_log(step(2), msgspec.structs.replace(other, events=freed_earlier), H100) is None


def test_where_only_what_came_before_differs_the_log_begins_with_what_lives() -> None:
    other = step(4)
    once = [(9, MIB), (9, -MIB), *other.events]
    log = allocation_log(step(2), trace(4, once, begin=3), H100)
    assert log is not None
    assert log.at(7)[:2] == (step(7).events, 1)


def test_where_the_model_was_moved_is_known_in_every_log() -> None:
    first, second = (msgspec.structs.replace(step(batch), moved=1) for batch in (2, 4))
    later = [(0, 32 * MIB), (9, MIB), (9, -MIB), *second.events[1:]]
    for other in (second, msgspec.structs.replace(trace(4, later, begin=3), moved=1)):
        log = allocation_log(first, other, H100)
        assert log is not None
        assert log.at(7).moved == 1
        found = reserved(log, micro_batch=4, expandable=True, limit_bytes=1000 * MIB, at_most=0)
        assert found.peak_bytes == (32 + 80) * MIB, "two results of 32 MiB in pages of 20, beside the parameter"


def test_a_storage_that_grows_is_given_back_and_taken_anew() -> None:
    log = AllocationLog([(0, Affine(10.0, 1.0)), (0, Affine(5.0, 0.0)), (0, Affine(-15.0, -1.0))], [], H100, 0)
    events, begin, _ = log.at(3)
    assert (events, begin) == ([(0, 13), (0, -13), (0, 18), (0, -18)], 0)
    assert not replay(events).out_of_memory


@pytest.mark.parametrize("expandable", [False, True])
def test_the_largest_batch_fits_and_one_clearly_larger_does_not(expandable: bool) -> None:
    log = allocation_log(step(2), step(4), H100)
    assert log is not None
    limit = 2000 * MIB
    found = reserved(log, micro_batch=4, expandable=expandable, limit_bytes=limit, at_most=123)
    assert found.peak_bytes == replay(log.at(4)[0], expandable=expandable).peak_reserved_bytes
    assert found.largest_peak_bytes <= limit + 20 * MIB * expandable, "those are mapped in whole pages"

    def fails(batch: int) -> bool:
        return replay(log.at(batch)[0], expandable=expandable, limit_bytes=limit).out_of_memory

    assert not fails(found.largest_batch)
    assert fails(found.largest_batch + 2), "one percent of some hundred"
    assert found.largest_batch == pytest.approx((2000 - 32) / 16, abs=4)


def test_a_batch_that_does_not_fit_is_said_to_need_more_than_the_limit() -> None:
    log = allocation_log(step(2), step(4), H100)
    assert log is not None
    found = reserved(log, micro_batch=64, expandable=False, limit_bytes=200 * MIB, at_most=10)
    assert found.peak_bytes >= (32 + 2 * 8 * 64) * MIB
    assert 8 <= found.largest_batch <= 10


def test_nothing_fits_where_not_even_the_parameter_does() -> None:
    log = allocation_log(step(2), step(4), H100)
    assert log is not None
    found = reserved(log, micro_batch=1, expandable=False, limit_bytes=20 * MIB, at_most=0)
    assert found.largest_batch == 0
    assert found.largest_peak_bytes == 0
    assert found.peak_bytes > 20 * MIB


def summed(micro_batch: int, *, begin: int = 1) -> StepTrace:
    """A step with a sum over 256 rows of each sample."""
    given = Like((256 * micro_batch, 8192), (8192, 1), torch.float32)
    result = Like((8192,), (1,), torch.float32)
    call = WorkspaceCall("sum.dim_IntList", (("self", given), ("dim", (0,))), (result,))
    size = 4 * result.count
    once = [(9, MIB), (9, -MIB)] if begin == 3 else []
    events = [*once, (0, 32 * MIB), (1, given.nbytes), (2, size), (1, -given.nbytes), (2, -size)]
    logged = LoggedCall(begin + 1, (begin + 1,), call)
    return msgspec.structs.replace(trace(micro_batch, events, begin), workspace_calls=[logged], products=[begin + 1])


@pytest.mark.parametrize(("batch", "partials"), [(4, 67_108_864), (12, 138_412_032), (60, 138_412_032)])
def test_what_an_operator_takes_inside_is_found_at_the_third_batch(batch: int, partials: int) -> None:
    """It grows until it fills the device, and then no more."""
    for later in (summed(4), summed(4, begin=3)):
        log = allocation_log(summed(2), later, H100)
        assert log is not None
        events, begin, _ = log.at(batch)
        assert begin == 1
        assert [size for _, size in events[2:7]] == [32_768, partials, 256, -256, -partials]
        assert not replay(events).out_of_memory


def test_cublas_takes_a_workspace_with_the_first_product() -> None:
    log = allocation_log(summed(2), summed(4), H100, 8 * MIB)
    assert log is not None
    events = log.at(4).events
    place = [size for _, size in events].index(8 * MIB)
    assert events[place - 1] == (1, 4 * 256 * 8192 * 4), "after what is multiplied"
    assert all(number != events[place][0] for number, _ in events[place + 1 :]), "for good"


def test_of_two_storages_of_one_size_either_may_go_first() -> None:
    births = [(0, 32 * MIB), (1, MIB), (2, MIB), (3, 2 * MIB)]
    first = trace(2, [*births, (1, -MIB), (4, MIB), (2, -MIB), (4, -MIB)])
    log = allocation_log(first, trace(4, [*births, (2, -MIB), (4, MIB), (1, -MIB), (4, -MIB)]), H100)
    assert log is not None
    assert log.at(7)[0] == first.events
    assert allocation_log(first, trace(4, [*births, (3, -2 * MIB), (4, MIB), (1, -MIB), (4, -MIB)]), H100) is None
