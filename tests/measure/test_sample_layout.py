"""Where a batch has its samples is found by asking for several sizes: the kinds of batches that people make."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from advisor.errors import WorkloadError
from advisor.measure.batches.sample_layout import find_layout, samples_in
from advisor.training.batch.tree import split
from advisor.workload.batch_layout import UNCUT

IMAGES, LABELS = torch.randn(48, 3, 4, 4), torch.arange(48)


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Record:
    inputs: torch.Tensor
    targets: list[int]


class Graph:
    """As torch_geometric's: an object that knows how to move itself."""

    def __init__(self, samples: int) -> None:
        nodes = 4 * samples
        self.x, self.y = torch.randn(nodes, 8), torch.randn(samples)
        self.edge_index = torch.randint(nodes, (2, 3 * nodes))


def samples(count: int, *shape: int) -> torch.Tensor:
    return torch.randn(count, *shape)


# Every batch, and the dimension of the samples of each of its parts.
CUT: dict[str, tuple[Any, dict[str, Any]]] = {
    "a tensor": (lambda n: samples(n, 4), {"": 0}),
    "a pair": (lambda n: (samples(n, 4), samples(n)), {"0": 0, "1": 0}),
    "a mapping": (lambda n: {"x": samples(n, 4), "name": "a", "k": 3}, {"x": 0}),
    "a tokenizer's mapping": (lambda n: UserDict(input_ids=torch.zeros(n, 8)), {"input_ids": 0}),
    "an ordered mapping": (lambda n: OrderedDict(x=samples(n, 4)), {"x": 0}),
    "a named tuple": (lambda n: Pair(samples(n, 4), samples(n)), {"inputs": 0, "targets": 0}),
    "a dataclass": (lambda n: Record(samples(n, 4), [0] * n), {"inputs": 0, "targets": 0}),
    "time first": (lambda n: (torch.zeros(35, n), torch.zeros(35, n)), {"0": 1, "1": 1}),
    "time first, labels not": (lambda n: (torch.zeros(35, n), torch.zeros(n)), {"0": 1, "1": 0}),
    "samples last": (lambda n: {"spectrum": torch.zeros(64, 100, n)}, {"spectrum": 2}),
    "lengths in a list": (lambda n: {"x": samples(n, 9), "lengths": [9] * n}, {"x": 0, "lengths": 0}),
    "a list of images": (lambda n: [torch.zeros(3, 8 + i, 8) for i in range(n)], {"": 0}),
    "images with targets": (
        lambda n: ([torch.zeros(3, 8, 8)] * n, [{"boxes": torch.zeros(i + 1, 4)} for i in range(n)]),
        {"0": 0, "1": 0},
    ),
    "words": (lambda n: {"text": ["a b"] * n, "label": torch.zeros(n)}, {"text": 0, "label": 0}),
    "arrays of numpy": (lambda n: {"x": numpy.zeros((n, 4)), "y": torch.zeros(n)}, {"x": 0, "y": 0}),
    "weights of classes": (lambda n: {"x": samples(n, 4), "weight": torch.ones(2)}, {"x": 0, "weight": None}),
    "positions of a length that varies": (
        lambda n: (lambda length: {"ids": torch.zeros(n, length), "positions": torch.arange(length)})(16 + 3 * n % 7),
        {"ids": 0, "positions": None},
    ),
    "weights of classes in a list": (
        lambda n: {"x": samples(n, 4), "weight": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]},
        {"x": 0, "weight": None},
    ),
    "weights of classes in an array": (
        lambda n: {"x": samples(n, 4), "weight": numpy.ones(7)},
        {"x": 0, "weight": None},
    ),
    "a temperature": (lambda n: {"x": samples(n, 4), "t": torch.tensor(0.5)}, {"x": 0, "t": None}),
    "nested": (lambda n: {"inputs": {"ids": samples(n, 4)}, "y": (samples(n), None)}, {"inputs.ids": 0, "y.0": 0}),
}

# Those that have samples, and cannot be cut: the part that cannot, and what its entries are.
UNCUT_BATCHES: dict[str, tuple[Any, str, str]] = {
    "a graph": (Graph, "", "cannot be cut"),
    "graphs and labels": (lambda n: (Graph(n), torch.zeros(n)), "0", "cannot be cut"),
    "two views one after the other": (lambda n: samples(2 * n, 4), "", "2 entries for each sample"),
    "offsets": (lambda n: {"y": samples(n), "offsets": torch.arange(n + 1)}, "offsets", "and 1"),
    "pairs of samples": (lambda n: {"x": samples(n, 4), "mask": torch.ones(n, n)}, "mask", "dimensions 0 and 1"),
    "packed tokens": (
        lambda n: {"y": samples(n), "tokens": torch.zeros(sum((9, 4, 7, 1, 12, 5, 3, 8)[:n]))},
        "tokens",
        "not with the number of samples",
    ),
    "a packed sequence": (
        lambda n: (pack_sequence([torch.zeros(9 - i % 3) for i in range(n)], enforce_sorted=False), torch.zeros(n)),
        "0",
        "cannot be cut",
    ),
    "sometimes another part": (
        lambda n: {"x": samples(n, 4), **({"extra": samples(n)} if n > 2 else {})},
        "extra",
        "not in every batch",
    ),
}


@pytest.mark.parametrize("kind", CUT)
def test_the_dimension_of_every_part_is_found(kind: str) -> None:
    make_batch, dims = CUT[kind]
    layout = find_layout(make_batch)
    assert layout.dims == dims
    assert layout.why_uncut == ""
    assert layout.most_samples is None
    assert samples_in(make_batch(7), layout) == 7


@pytest.mark.parametrize("kind", CUT)
def test_chunks_together_are_the_batch(kind: str) -> None:
    make_batch, _ = CUT[kind]
    layout = find_layout(make_batch)
    chunks = split(make_batch(7), 3, layout.dims)
    assert [samples_in(chunk, layout) for chunk in chunks] == [3, 2, 2]


@pytest.mark.parametrize("kind", CUT)
def test_what_a_training_takes_for_granted_need_not_be_told(kind: str) -> None:
    """Without being told it cuts the same; where it would not, it is told."""
    make_batch, _ = CUT[kind]
    layout = find_layout(make_batch)
    if layout.is_usual:
        assert [samples_in(chunk, layout) for chunk in split(make_batch(7), 3, layout.sample_dims)] == [3, 2, 2]
    else:
        assert layout.sample_dims == layout.dims


def test_time_first_is_told_and_samples_first_is_not() -> None:
    assert not find_layout(CUT["time first"][0]).is_usual
    assert not find_layout(CUT["weights of classes"][0]).is_usual
    assert not find_layout(CUT["a list of images"][0]).is_usual
    for kind in ("a pair", "a mapping", "a dataclass", "lengths in a list", "a temperature", "words"):
        assert find_layout(CUT[kind][0]).is_usual, kind


@pytest.mark.parametrize("kind", UNCUT_BATCHES)
def test_what_cannot_be_cut_is_counted_and_named(kind: str) -> None:
    make_batch, part, reason = UNCUT_BATCHES[kind]
    layout = find_layout(make_batch)
    assert samples_in(make_batch(7), layout) == 7
    assert layout.dims[part] == UNCUT
    assert reason in layout.uncut_because[part]
    assert (part or "the batch") in layout.why_uncut
    batch = make_batch(7)
    if any(isinstance(dim, int) for dim in layout.dims.values()):
        with pytest.raises(WorkloadError, match="must be cut into micro-batches"):
            split(batch, 3, layout.dims)
    else:
        assert split(batch, 3, layout.dims) == [batch], "nobody knows how many samples it has"


@pytest.mark.parametrize("size", [9, 10, 48])
def test_a_data_set_that_ends_is_seen(size: int) -> None:
    """Trap: 48 samples were counted as 65,536."""
    layout = find_layout(lambda n: (IMAGES[: min(n, size)], LABELS[: min(n, size)]))
    assert layout.dims == {"0": 0, "1": 0}
    assert layout.most_samples == size


@pytest.mark.parametrize("size", [3, 4])
def test_one_that_ends_at_once_as_well(size: int) -> None:
    layout = find_layout(lambda n: IMAGES[: min(n, size)])
    assert layout.most_samples == size


def test_the_users_own_batch_is_asked_for_whatever_it_costs() -> None:
    asked: list[int] = []
    seconds = iter(range(1000))

    def make_batch(size: int) -> torch.Tensor:
        asked.append(size)
        return IMAGES[:size]

    layout = find_layout(make_batch, own_batch=64, clock=lambda: float(next(seconds)))
    assert asked[3:] == [64]
    assert layout.most_samples == 48


def test_batches_that_cost_much_are_not_asked_for() -> None:
    asked: list[int] = []
    seconds = iter(range(1000))

    def make_batch(size: int) -> torch.Tensor:
        asked.append(size)
        return samples(size, 4)

    assert find_layout(make_batch, clock=lambda: float(next(seconds))).most_samples is None
    assert asked == [2, 3, 5, 20]


@pytest.mark.parametrize("step", [2, 4])
def test_batches_of_even_sizes_alone_will_do(step: int) -> None:
    def make_batch(size: int) -> torch.Tensor:
        if size % step and size != 2:
            raise ValueError(f"{size} is not divisible by {step}")
        return samples(size, 4)

    layout = find_layout(make_batch)
    assert layout.dims == {"": 0}
    assert (layout.least_samples, layout.multiple) == (step, step)


def test_batches_of_a_multiple_that_no_usual_size_is_are_found_from_the_users_own() -> None:
    """Trap: a sampler of twelve views of each item made none of the sizes that were asked for."""

    def make_batch(size: int) -> torch.Tensor:
        if size % 12:
            raise ValueError(f"{size} is not divisible by 12")
        return samples(size, 4)

    layout = find_layout(make_batch, own_batch=48)
    assert layout.dims == {"": 0}
    assert (layout.least_samples, layout.multiple) == (12, 12)
    assert [layout.fitted(size) for size in (11, 12, 47, 100)] == [0, 12, 36, 96]
    with pytest.raises(ValueError, match="2 is not divisible by 12"):
        find_layout(make_batch, own_batch=50)


def test_the_end_of_the_data_is_found_between_such_batches() -> None:
    def make_batch(size: int) -> torch.Tensor:
        if size % 12 or size > 200:
            raise ValueError(f"{size} is not divisible by 12, or too many")
        return samples(size, 4)

    assert find_layout(make_batch, own_batch=60).most_samples == 192


def test_where_every_size_can_be_made_any_will_do() -> None:
    assert find_layout(lambda size: samples(size, 4), own_batch=48).takes_any


def test_sizes_that_fail_because_the_data_ends_rule_out_no_others() -> None:
    def make_batch(size: int) -> torch.Tensor:
        return torch.from_numpy(numpy.random.choice(4, size, replace=False))

    layout = find_layout(make_batch, own_batch=4)
    assert layout.takes_any
    assert layout.most_samples == 4


def test_what_the_users_function_raises_is_theirs() -> None:
    def make_batch(size: int) -> torch.Tensor:
        raise KeyError("no such file")

    with pytest.raises(KeyError, match="no such file"):
        find_layout(make_batch)


@pytest.mark.parametrize(
    "make_batch",
    [
        lambda n: (torch.zeros(32, 4), torch.zeros(32)),
        lambda n: (torch.zeros(32, int(torch.randint(9, 99, ()))), "name"),
        lambda n: {"x": torch.zeros(1, 9)},
        lambda n: 3,
        lambda n: object(),
        lambda n: [torch.zeros(2), torch.zeros(2)],
        lambda n: torch.tensor(1.0),
    ],
)
def test_a_batch_of_a_fixed_size_is_refused_with_the_lines_to_write(make_batch: Any) -> None:
    """Trap: a loader of 32 was confirmed at 131 million samples a second."""
    with pytest.raises(WorkloadError, match="must return batch_size samples") as refused:
        find_layout(make_batch)
    assert "return inputs[:batch_size], targets[:batch_size]" in str(refused.value)


def test_what_came_instead_is_said() -> None:
    with pytest.raises(WorkloadError, match="asked for 2, 3 and 5, each time it returned 0 of 32x4, 1 of 32"):
        find_layout(lambda n: (torch.zeros(32, 4), torch.zeros(32)))


def test_another_shape_than_before_has_no_count() -> None:
    layout = find_layout(CUT["a pair"][0])
    assert samples_in((samples(4, 4), samples(3)), layout) is None
    assert samples_in({"x": samples(4)}, layout) is None
    grown = find_layout(UNCUT_BATCHES["two views one after the other"][0])
    assert samples_in(samples(7, 4), grown) is None


@pytest.mark.parametrize("kind", ["weights of classes in a list", "weights of classes in an array"])
def test_what_is_shared_stays_whole_although_it_is_as_long_as_the_batch(kind: str) -> None:
    make_batch, _ = CUT[kind]
    layout = find_layout(make_batch)
    assert not layout.is_usual
    assert all(len(chunk["weight"]) == 7 for chunk in split(make_batch(7), 3, layout.sample_dims))


@pytest.mark.parametrize("population", [50, 333])
def test_a_data_set_from_which_no_more_can_be_drawn_ends_there(population: int) -> None:
    """Trap: drawing without replacement raises, and that was the end of the whole tuning."""

    def make_batch(size: int) -> torch.Tensor:
        return torch.from_numpy(numpy.random.choice(population, size, replace=False))

    assert find_layout(make_batch, own_batch=16).most_samples == population


def test_but_the_users_own_batch_must_be_one() -> None:
    with pytest.raises(ValueError, match="larger"):
        find_layout(lambda n: torch.from_numpy(numpy.random.choice(50, n, replace=False)), own_batch=64)
