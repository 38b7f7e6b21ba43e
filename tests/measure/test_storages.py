from __future__ import annotations

import torch

from advisor.measure.memory.storages import HostData, bytes_of, living_tensors, tensors_in, view_bytes

CPU = torch.device("cpu")


def test_a_storage_counts_once_however_many_tensors_look_at_it() -> None:
    base = torch.zeros(100)
    assert bytes_of([base, base[10:], {"same": base.view(10, 10)}], CPU) == 400


def test_only_the_asked_device_counts() -> None:
    assert bytes_of([torch.zeros(100, device="meta"), torch.zeros(1)], CPU) == 4


def test_a_copy_of_a_view_takes_the_bytes_of_the_view() -> None:
    assert view_bytes(tensors_in({"rows": torch.zeros(1000)[:10]})) == 40


def test_a_sparse_tensor_counts_by_its_parts() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (1000,), check_invariants=True)
    assert bytes_of(sparse, CPU) == 2 * 8 + 2 * 4


def test_a_tensor_that_wraps_others_counts_by_those_alone() -> None:
    """A distributed tensor names its mesh of devices beside its local part."""

    class Wrapping(torch.Tensor):
        part = torch.zeros(100)
        mesh = "two devices"

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["part", "mesh"], None

    assert bytes_of(torch.zeros(1).as_subclass(Wrapping), CPU) == 400


def test_living_tensors_finds_what_no_module_knows_and_gradients() -> None:
    hidden_away = [torch.zeros(12345)]
    leaf = torch.zeros(3, requires_grad=True)
    leaf.sum().backward()
    living = living_tensors()
    assert any(tensor is hidden_away[0] for tensor in living)
    assert any(tensor is leaf.grad for tensor in living)


def test_host_data_forgets_a_storage_whose_address_is_used_again() -> None:
    host_data = HostData()
    waiting = torch.zeros(1000)
    host_data.add(waiting, CPU)
    key = waiting.untyped_storage()._cdata
    assert waiting.untyped_storage() in host_data
    del waiting
    for _ in range(1000):
        other = torch.zeros(1000)
        assert other.untyped_storage() not in host_data
        if other.untyped_storage()._cdata == key:
            break
