from __future__ import annotations

import torch

from advisor.measure.leftovers import MemoryBaseline
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


def test_device_memory_that_stays_allocated_is_named() -> None:
    cuda = FakeCuda()
    baseline = MemoryBaseline(torch.device("cuda:0"), fresh_host_data(), cuda)
    cuda.allocated += 2**20
    assert baseline.leftover() == ""  # small change of the libraries
    cuda.allocated += 2**24
    assert "on cuda:0 stayed allocated" in baseline.leftover()
