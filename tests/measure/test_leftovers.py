from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from advisor.measure.memory.leftovers import MemoryBaseline, host_cache_emptier
from advisor.measure.speed.warm_up import use_libraries, warm_up
from tests.measure.tiny import CPU, fresh_host_data, tiny_training


class FakeCuda:
    def __init__(self) -> None:
        self.allocated = 100

    def empty_cache(self) -> None: ...

    def memory_allocated(self, device: torch.device) -> int:
        return self.allocated


def test_a_training_that_is_gone_leaves_nothing() -> None:
    baseline = MemoryBaseline(CPU, fresh_host_data())
    training = tiny_training()
    training.step(torch.randn(4, 8))
    del training
    assert baseline.leftover() == ""


def test_tensors_that_stay_are_named() -> None:
    baseline = MemoryBaseline(CPU, fresh_host_data())
    kept = [torch.zeros(1_000_000)]
    assert "4000000 bytes of tensors" in baseline.leftover()
    kept.clear()
    assert baseline.leftover() == ""


def test_a_loss_kept_with_its_graph_is_found_although_it_is_small() -> None:
    """The graph's activations belong to C++: no look at Python's objects finds their bytes."""
    baseline = MemoryBaseline(CPU, fresh_host_data())
    training = tiny_training()
    history = [training.forward(torch.randn(4, 8))]
    del training
    assert "autograd graph" in baseline.leftover()
    history.clear()
    assert baseline.leftover() == ""


def test_page_locked_memory_that_torch_keeps_in_store_is_given_back() -> None:
    given_back = []
    baseline = MemoryBaseline(
        torch.device("cuda:0"), fresh_host_data(), FakeCuda(), empty_host_cache=lambda: given_back.append(True)
    )
    assert baseline.leftover() == ""
    assert given_back == [True]


def test_every_place_of_the_host_cache_is_found() -> None:
    calls: list[str] = []
    new = SimpleNamespace(
        accelerator=SimpleNamespace(empty_host_cache=lambda: calls.append("new")), _C=SimpleNamespace()
    )
    old = SimpleNamespace(_C=SimpleNamespace(_host_emptyCache=lambda: calls.append("old")))
    for library in (new, old, SimpleNamespace(_C=SimpleNamespace())):
        host_cache_emptier(library)()
    assert calls == ["new", "old"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells shared pages apart")
def test_the_pages_of_libraries_are_no_leftover(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: CUDA's libraries are loaded in the first trial, whose worker would never stay."""
    used = SimpleNamespace(rss=2**30, shared=2**29)
    monkeypatch.setattr("psutil.Process.memory_info", lambda self: used)
    baseline = MemoryBaseline(CPU, fresh_host_data())
    used.rss, used.shared = 2**32, 2**32 - 2**29
    assert baseline.leftover() == ""
    used.shared = 2**29
    assert "the process grew" in baseline.leftover()


def test_warming_up_goes_through_every_library_and_changes_nothing() -> None:
    torch.manual_seed(5)
    drawn = torch.randn(3)
    torch.manual_seed(5)
    baseline = MemoryBaseline(CPU, fresh_host_data())
    with torch.profiler.profile() as profiler:
        use_libraries(CPU)
    names = {event.key for event in profiler.key_averages()}
    assert {"aten::mm", "aten::convolution", "aten::convolution_backward"} <= names
    assert baseline.leftover() == ""
    assert torch.equal(torch.randn(3), drawn)


def test_a_process_warms_up_once_and_only_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    gpu = torch.device("cuda:7")
    monkeypatch.setattr("advisor.measure.speed.warm_up.use_libraries", used.append)
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    monkeypatch.setattr("advisor.measure.speed.warm_up._warm", set())
    for device in (CPU, gpu, gpu):
        warm_up(device)
    assert used == [gpu]


def test_device_memory_that_stays_allocated_is_named() -> None:
    cuda = FakeCuda()
    baseline = MemoryBaseline(torch.device("cuda:0"), fresh_host_data(), cuda, empty_host_cache=lambda: None)
    cuda.allocated += 2**20
    assert baseline.leftover() == ""  # small change of the libraries
    cuda.allocated += 2**24
    assert "on cuda:0 stayed allocated" in baseline.leftover()
