"""Batches of as many samples may differ in size: memory is that of the largest, time that of the average."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from advisor.measure.batches.sample_layout import find_layout
from advisor.measure.batches.varying_sizes import draw_batches, find_sizes
from advisor.workload.batch_layout import BatchSizes

LONG = 2048


def padded(samples: int) -> dict[str, torch.Tensor]:
    """Each padded to its longest sample; one sample in 40 is long."""
    lengths = torch.randint(16, 129, (samples,))
    lengths[torch.rand(samples) < 1 / 40] = LONG
    return {"input_ids": torch.ones(samples, int(lengths.max()), dtype=torch.long), "scores": torch.ones(samples)}


def rarely_long(samples: int) -> torch.Tensor:
    """All of one length, but for one batch in 50."""
    return torch.ones(samples, LONG if torch.rand(()) < 1 / 50 else 64)


def of_any_length(samples: int) -> list[torch.Tensor]:
    return [torch.ones(int(torch.randint(4, 100, ()))) for _ in range(samples)]


class Graphs:
    def __init__(self, samples: int) -> None:
        self.nodes, self.y = torch.ones(int(torch.randint(3, 90, (samples,)).sum()), 4), torch.ones(samples)


def sizes_of(make_batch: Callable[[int], Any], samples: int = 4) -> BatchSizes | None:
    return find_sizes(make_batch, samples, find_layout(make_batch).dims)


def found(make_batch: Callable[[int], Any], samples: int = 4) -> BatchSizes:
    sizes = sizes_of(make_batch, samples)
    assert sizes is not None
    return sizes


@pytest.mark.parametrize(
    "make_batch",
    [lambda n: torch.randn(n, 8), lambda n: (torch.randn(35, n), [35] * n), lambda n: {"x": torch.ones(n, 8), "id": 7}],
    ids=["a tensor", "time first", "a mapping"],
)
def test_batches_that_are_alike_are_said_to_be(make_batch: Callable[[int], Any]) -> None:
    assert sizes_of(make_batch) is None


@pytest.mark.parametrize(("make_batch", "path"), [(padded, "input_ids"), (rarely_long, "")])
def test_the_dimension_that_differs_is_named_with_its_sizes(make_batch: Callable[[int], Any], path: str) -> None:
    sizes = found(make_batch)
    assert (sizes.path, sizes.dim) == (path, 1)
    assert sizes.smallest < 129
    assert sizes.largest == LONG
    assert sizes.smallest < sizes.mean < sizes.largest
    assert f"{sizes.smallest:,} to 2,048 entries in dimension 1" in sizes.words


@pytest.mark.parametrize("make_batch", [of_any_length, Graphs], ids=["a list", "an object"])
def test_what_is_in_lists_and_objects_counts_too(make_batch: Callable[[int], Any]) -> None:
    sizes = found(make_batch)
    assert sizes.smallest < sizes.largest


def test_the_largest_batch_is_drawn_at_every_number_of_samples_where_its_length_is_drawn_first() -> None:
    sizes = found(rarely_long)
    for samples in (1, 4, 64, 4096):
        drawn = draw_batches(rarely_long, samples, sizes, 2, seed=0)
        assert drawn.largest.shape == (samples, LONG)
        assert [batch.shape for batch in drawn.typical] == [(samples, 64)] * 2


def test_typical_batches_are_near_the_average() -> None:
    sizes = found(of_any_length, 8)
    drawn = draw_batches(of_any_length, 8, sizes, 2, seed=0)
    numbers = [sum(map(len, batch)) for batch in drawn.typical]
    assert all(abs(one - sizes.mean) < (sizes.largest - sizes.smallest) / 10 for one in numbers)
    assert sum(map(len, drawn.largest)) == sizes.largest, "the same draws as before"


def test_draws_are_the_same_for_every_policy() -> None:
    sizes = found(padded)
    first, second = (draw_batches(padded, 16, sizes, 2, seed=3) for _ in range(2))
    assert first.largest["input_ids"].shape == second.largest["input_ids"].shape
    for one, other in zip(first.typical, second.typical, strict=True):
        assert one["input_ids"].shape == other["input_ids"].shape


def test_no_more_is_drawn_than_there_is_time_for() -> None:
    clock = itertools.count(step=0.2)
    sizes = find_sizes(of_any_length, 4, {}, clock=lambda: next(clock))
    assert sizes is not None
    assert sizes.batches == 4


def test_data_that_ends_while_batches_are_drawn_is_no_failure() -> None:
    lengths = iter([5, 9, 7])
    sizes = find_sizes(lambda samples: torch.ones(samples, next(lengths)), 4, {"": 0})
    assert sizes is not None
    assert (sizes.batches, sizes.smallest, sizes.largest) == (3, 5, 9)
    lengths = iter([5, 9, 7])
    drawn = draw_batches(lambda samples: torch.ones(samples, next(lengths)), 4, sizes, 2, seed=0)
    assert drawn.largest.shape == (4, 9)


def test_data_that_ends_before_there_are_enough_batches_is_a_failure() -> None:
    sizes = found(padded)
    lengths = iter([5])
    with pytest.raises(StopIteration):
        draw_batches(lambda samples: torch.ones(samples, next(lengths)), 4, sizes, 2, seed=0)
