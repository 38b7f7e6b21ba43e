"""A backward pass of fake tensors takes what one of plain tensors takes, sum by sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.measure.memory.allocation_log import AllocationLog
from advisor.predict.trace.engine_sums import EngineSums
from advisor.predict.trace.plain_linear import linear_as_plain
from advisor.predict.trace.storage_log import StorageLog

SIZE = 1000


class Added(torch.autograd.Function):
    """Adds in a backward pass of the user's own."""

    @staticmethod
    def forward(ctx: object, samples: torch.Tensor) -> torch.Tensor:
        return samples * 2

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 3 + gradient * 4


PLACES = torch.tensor([1, 5, 5])

GRAPHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "two uses": lambda one: one * 3 + one * 4,
    "four uses": lambda one: one * 3 + one * 4 + one.sin() + one.cos(),
    "passed on beside": lambda one: (one + one * 3) * 2,
    "a view": lambda one: one.view(10, -1).exp().view(-1) + one.flip(0),
    "spread": lambda one: one.exp().sum() + one * 3,
    "the user's own": lambda one: Added.apply(one * 3) + one.exp(),  # type: ignore[no-untyped-call]
    "a part": lambda one: one[PLACES].sum() + one * 3,
}


def most(changes: list[int]) -> int:
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return peak


def backward(graph: Callable[[torch.Tensor], torch.Tensor], leaf: torch.Tensor) -> None:
    graph(leaf * 2).sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", GRAPHS)
def test_it_takes_what_one_of_plain_tensors_takes(name: str) -> None:
    leaf = torch.ones(SIZE, requires_grad=True)
    with AllocationLog() as real:
        backward(GRAPHS[name], leaf)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.ones(SIZE, requires_grad=True)
        with StorageLog(torch.device("cpu")) as log, EngineSums():
            log.ignore([fake])
            backward(GRAPHS[name], fake)
    measured, traced = (
        [change for _, change in events if abs(change) >= 4 * SIZE] for events in (real.events, log.events)
    )
    assert most(traced) == most(measured) >= 4 * SIZE
    assert sum(change > 0 for change in traced) == sum(change > 0 for change in measured)


@pytest.mark.parametrize("shape", [(8, 4, 16), (4, 8, 2, 16), (32, 16)])
def test_a_bias_is_added_in_place_where_it_is_to_plain_tensors(shape: tuple[int, ...]) -> None:
    def run() -> torch.Tensor:
        samples = torch.ones(shape).transpose(0, -2)
        weight, bias = torch.ones(16, 16, requires_grad=True), torch.ones(16, requires_grad=True)
        return torch.nn.functional.linear(samples, weight, bias)

    with AllocationLog() as real:
        run()
    with linear_as_plain("cpu"), FakeTensorMode(), StorageLog(torch.device("cpu")) as log:
        run()
    assert most([change for _, change in log.events]) == most([change for _, change in real.events])


@pytest.mark.parametrize("shape", [(8, 16), (4, 8, 16), (2, 4, 8, 16), (2, 2, 4, 8, 16)])
def test_a_bias_is_in_the_product_where_the_input_is_contiguous(shape: tuple[int, ...]) -> None:
    def steps() -> list[str]:
        weight, bias = torch.ones(16, 16, requires_grad=True), torch.ones(16, requires_grad=True)
        result = torch.nn.functional.linear(torch.ones(shape), weight, bias)
        return [node.name() for node in nodes_of(result)]

    plain = steps()
    assert "AddmmBackward0" in plain
    with linear_as_plain("cpu"), FakeTensorMode():
        assert steps() == plain


def nodes_of(tensor: torch.Tensor) -> list[Any]:
    """Backward steps, each before those that it hands gradients to."""
    nodes = [tensor.grad_fn]
    for node in nodes:
        nodes += [one for one, _ in node.next_functions if one is not None]  # type: ignore[union-attr]
    return nodes
