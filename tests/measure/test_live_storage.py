from __future__ import annotations

import pytest
import torch

from advisor.errors import DeviceOutOfMemoryError
from advisor.measure.memory.live_storage import LiveStorages
from advisor.measure.memory.storages import HostData

CPU = torch.device("cpu")


def test_counts_births_and_deaths() -> None:
    with LiveStorages(CPU, HostData()) as storages:
        first = torch.zeros(100)
        second = first + 1
        assert storages.live_bytes == 800
        del first
        assert storages.live_bytes == 400
        del second
    assert storages.live_bytes == 0
    assert storages.peak_bytes == 800


def test_views_and_in_place_operations_take_nothing() -> None:
    with LiveStorages(CPU, HostData()) as storages:
        tensor = torch.zeros(100)
        tensor.view(10, 10).add_(1)
        tensor[3:]
        assert storages.live_bytes == 400


def test_follows_a_storage_that_is_resized() -> None:
    with LiveStorages(CPU, HostData()) as storages:
        tensor = torch.zeros(100)
        tensor.resize_(1000)
        assert storages.live_bytes == 4000


def test_notices_storages_that_were_emptied_in_place_before_it_raises() -> None:
    """Parameters that several devices share are gathered, used, and emptied without an operation."""
    gathered = []
    with LiveStorages(CPU, HostData(), limit_bytes=10_000) as storages:
        for _ in range(10):
            gathered.append(torch.zeros(1000))
            gathered[-1].untyped_storage().resize_(0)
        assert storages.born_in(0) == 0
        kept = [torch.zeros(1000) for _ in range(2)]
        assert storages.live_bytes == 8000
        with pytest.raises(DeviceOutOfMemoryError):
            kept.append(torch.zeros(1000))


def test_sees_the_backward_pass() -> None:
    weight = torch.zeros(1000, requires_grad=True)
    with LiveStorages(CPU, HostData()) as storages:
        loss = (weight * 2).sum()
        assert storages.live_bytes == 4  # nothing of the product is needed by the backward pass
        loss.backward()
        assert storages.live_bytes == 4 + 4000  # the gradient


def test_raises_the_moment_the_limit_is_passed() -> None:
    with LiveStorages(CPU, HostData(), limit_bytes=10_000) as storages:
        kept = [torch.zeros(250) for _ in range(10)]
        assert storages.live_bytes == 10_000
        with pytest.raises(DeviceOutOfMemoryError, match=r"within 9\.77 KiB, but 9\.77 KiB were live"):
            torch.zeros(1)
        del kept


def test_raises_inside_the_backward_pass() -> None:
    weight = torch.zeros(1000, requires_grad=True)
    with LiveStorages(CPU, HostData(), limit_bytes=6000):
        loss = weight.sum()
        with pytest.raises(DeviceOutOfMemoryError):
            (loss * weight.sum() + (weight * 2).sum()).backward()


def test_host_data_does_not_count() -> None:
    host_data = HostData()
    batch = torch.zeros(1000)
    host_data.add(batch, CPU)
    with LiveStorages(CPU, host_data) as storages:
        storages.add(batch)
        batch[:500]
        assert storages.live_bytes == 0


def test_remembers_when_what_existed_before_is_freed() -> None:
    old = torch.zeros(100)
    with LiveStorages(CPU, HostData()) as storages:
        storages.add(old)
        storages.next_epoch()
        new = torch.zeros(50)
        del old, new
    assert [size for _, size in storages.deaths_of_old] == [400]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_is_compiled_stays_compiled() -> None:
    """Met below an ordinary dispatch mode for the first time, it would run uncompiled ever after."""
    compilations = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        compilations.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(8, 8), backend=backend)
    with LiveStorages(CPU, HostData()):
        model(torch.zeros(2, 8)).sum().backward()
    assert len(compilations) == 1
    model(torch.zeros(2, 8))
    assert len(compilations) == 1
