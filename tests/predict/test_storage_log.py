"""Every storage is numbered when it is born and written off when it dies, with or without data."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.predict.trace.storage_log import StorageLog

CPU = torch.device("cpu")


@pytest.fixture(params=["real", "fake"])
def mode(request: pytest.FixtureRequest) -> contextlib.AbstractContextManager[object]:
    return FakeTensorMode() if request.param == "fake" else contextlib.nullcontext()


def test_births_and_deaths_are_in_order(mode: contextlib.AbstractContextManager[object]) -> None:
    with mode, StorageLog(CPU) as log:
        first = torch.zeros(10)
        second = first + 1
        del first
        third = second * 2
        del second, third
    assert log.events == [(0, 40), (1, 40), (0, -40), (2, 40), (1, -40), (2, -40)]
    assert log.operators == ["zeros.default", "add.Tensor", "mul.Tensor"]


def test_views_and_in_place_results_are_no_storages_of_their_own(
    mode: contextlib.AbstractContextManager[object],
) -> None:
    with mode, StorageLog(CPU) as log:
        tensor = torch.zeros(2, 5)
        views = [tensor.view(10), tensor.t(), tensor[0], tensor.add_(1)]
        del tensor
        assert log.events == [(0, 40)]
        del views
    assert log.events == [(0, 40), (0, -40)]


def test_a_storage_that_is_resized_grows_and_shrinks(mode: contextlib.AbstractContextManager[object]) -> None:
    with mode, StorageLog(CPU) as log:
        tensor = torch.zeros(10)
        tensor.untyped_storage().resize_(0)
        log.look_again()
        tensor.untyped_storage().resize_(80)
        log.look_again()
    assert log.events == [(0, 40), (0, -40), (0, 80)]


def test_what_is_ignored_is_so_through_its_views(mode: contextlib.AbstractContextManager[object]) -> None:
    with mode:
        batch = {"x": torch.zeros(10)}
        with StorageLog(CPU) as log:
            log.ignore(batch)
            assert log.add(batch["x"].view(5, 2)) == []
            other = batch["x"] + 1
        assert log.events == [(0, 40)]
        assert other is not None


def test_what_came_from_elsewhere_is_added_once(mode: contextlib.AbstractContextManager[object]) -> None:
    with mode:
        tensor = torch.zeros(10)
        log = StorageLog(CPU)
        assert log.add([tensor, tensor.view(2, 5)]) == [0, 0]
        assert log.add(tensor) == [0]
    assert log.events == [(0, 40)]


def test_the_backward_pass_is_seen(mode: contextlib.AbstractContextManager[object]) -> None:
    with mode, StorageLog(CPU) as log:
        weight = torch.ones(4, requires_grad=True)
        (weight * weight).sum().backward()
        gradient = weight.grad
    assert gradient is not None
    lives = {number for number, _ in log.events if sum(size for one, size in log.events if one == number)}
    assert len(lives) == 2, "the weight and its gradient"
