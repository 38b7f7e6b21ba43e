"""What an allocator takes at a batch that nobody traced."""

from __future__ import annotations

import msgspec
import pytest

from advisor.methods.phase import Phase
from advisor.predict.allocator import replay
from advisor.predict.prediction import Affine
from advisor.predict.reserved import AllocationLog, allocation_log, reserved
from advisor.predict.step_trace import StepTrace

MIB = 2**20


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
    log = allocation_log(step(2), step(4))
    assert log is not None
    assert log.at(7) == step(7).events


def test_traces_of_different_steps_have_no_common_log() -> None:
    other = step(4)
    assert allocation_log(step(2), msgspec.structs.replace(other, events=other.events[:-1])) is None
    freed_earlier = [other.events[index] for index in (0, 1, 3, 2, 4)]
    assert allocation_log(step(2), msgspec.structs.replace(other, events=freed_earlier)) is None


def test_where_only_what_came_before_differs_the_log_begins_with_what_lives() -> None:
    other = step(4)
    once = [(9, MIB), (9, -MIB), *other.events]
    log = allocation_log(step(2), trace(4, once, begin=3))
    assert log is not None
    assert log.at(7) == step(7).events


def test_a_storage_that_grows_is_given_back_and_taken_anew() -> None:
    log = AllocationLog([(0, Affine(10.0, 1.0)), (0, Affine(5.0, 0.0)), (0, Affine(-15.0, -1.0))])
    assert log.at(3) == [(0, 13), (0, -13), (0, 18), (0, -18)]
    assert not replay(log.at(3)).out_of_memory


@pytest.mark.parametrize("expandable", [False, True])
def test_the_largest_batch_fits_and_one_clearly_larger_does_not(expandable: bool) -> None:
    log = allocation_log(step(2), step(4))
    assert log is not None
    limit = 2000 * MIB
    found = reserved(log, micro_batch=4, expandable=expandable, limit_bytes=limit, at_most=123, workspace_bytes=8 * MIB)
    assert found.peak_bytes == replay(log.at(4), expandable=expandable, workspace_bytes=8 * MIB).peak_reserved_bytes
    assert found.largest_peak_bytes <= limit + 20 * MIB * expandable, "those are mapped in whole pages"

    def fails(batch: int) -> bool:
        events = log.at(batch)
        return replay(events, expandable=expandable, limit_bytes=limit, workspace_bytes=8 * MIB).out_of_memory

    assert not fails(found.largest_batch)
    assert fails(found.largest_batch + 2), "one percent of some hundred"
    assert found.largest_batch == pytest.approx((2000 - 32 - 8) / 16, abs=4)


def test_a_batch_that_does_not_fit_is_said_to_need_more_than_the_limit() -> None:
    log = allocation_log(step(2), step(4))
    assert log is not None
    found = reserved(log, micro_batch=64, expandable=False, limit_bytes=200 * MIB, at_most=10, workspace_bytes=0)
    assert found.peak_bytes >= (32 + 2 * 8 * 64) * MIB
    assert 8 <= found.largest_batch <= 10


def test_nothing_fits_where_not_even_the_parameter_does() -> None:
    log = allocation_log(step(2), step(4))
    assert log is not None
    found = reserved(log, micro_batch=1, expandable=False, limit_bytes=20 * MIB, at_most=0, workspace_bytes=0)
    assert found.largest_batch == 0
    assert found.largest_peak_bytes == 0
    assert found.peak_bytes > 20 * MIB
