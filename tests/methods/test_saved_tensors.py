"""Saved tensors on the host: the right values come back, whatever happened to the memory in between."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from advisor.errors import MethodRefusedError
from advisor.hardware.host import HostMemory
from advisor.methods.activations._host_copies import HostBound, MoveToHost
from advisor.methods.activations.swap import Swap
from advisor.training.saved.tensor_pipeline import SavedTensorPipeline
from advisor.training.training import Training
from tests.methods.tiny import convnet, images, training_of


class SavedTensorSwap(SavedTensorPipeline):
    """A pipeline whose only stage moves to the host."""

    def __init__(self, model: nn.Module, *, min_bytes: int, max_host_bytes: int) -> None:
        super().__init__(lambda: model, [])
        self.bound = HostBound("swap", max_host_bytes)
        self.stage = MoveToHost(min_bytes, self.bound)
        self.add(self.stage, "nothing")

    def live_host_bytes(self) -> int:
        return sum(copy.host.nbytes for copy in self.bound.copies)


def swap_of(model: nn.Module | None = None, min_bytes: int = 1, max_host_bytes: int = 2**30) -> SavedTensorSwap:
    return SavedTensorSwap(model or nn.Module(), min_bytes=min_bytes, max_host_bytes=max_host_bytes)


def restored(swap: SavedTensorSwap, tensor: torch.Tensor) -> torch.Tensor:
    return swap.unpack(swap.pack(tensor))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:3],
        lambda t: t[:, 2:4],
        lambda t: t[0].expand(5, 6),
        lambda t: t.view(2, 2, 6).permute(2, 0, 1),
        lambda t: t.to(torch.bfloat16),
        lambda t: t[2, 3],
    ],
)
def test_every_kind_of_view_comes_back_with_its_values_and_layout(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    tensor = view(torch.randn(4, 6))
    back = restored(swap_of(), tensor)
    assert torch.equal(back, tensor)
    assert back.stride() == tensor.stride()
    assert back.dtype == tensor.dtype


def test_what_comes_back_is_a_copy_even_on_a_cpu() -> None:
    tensor = torch.ones(8)
    swap = swap_of()
    kept = swap.pack(tensor)
    tensor.zero_()  # save_on_cpu would alias here, and give wrong gradients.
    assert torch.equal(swap.unpack(kept), torch.ones(8))
    swap.unpack(kept).zero_()  # Nor does a backward formula that writes to what it was given reach the next one.
    assert torch.equal(swap.unpack(kept), torch.ones(8))


class TestSharing:
    def test_a_tensor_and_its_views_are_copied_once(self) -> None:
        tensor, swap = torch.randn(4, 6), swap_of()
        kept = [swap.pack(each) for each in (tensor, tensor.view(24), tensor.t(), tensor.detach())]
        assert swap.live_host_bytes() == 96
        assert torch.equal(swap.unpack(kept[2]), tensor.t())

    def test_slices_of_one_projection_share_one_copy(self) -> None:
        projection, swap = torch.randn(2, 3, 12), swap_of()
        parts = projection.split(4, dim=-1)
        kept = [swap.pack(part) for part in parts]
        assert swap.live_host_bytes() == projection.numel() * 4
        assert all(torch.equal(swap.unpack(k), part) for k, part in zip(kept, parts, strict=True))

    def test_a_tensor_written_to_in_between_is_copied_again(self) -> None:
        tensor, swap = torch.ones(8), swap_of()
        first = swap.pack(tensor)
        tensor.add_(1)
        second = swap.pack(tensor)
        assert swap.unpack(first).tolist() == [1.0] * 8
        assert swap.unpack(second).tolist() == [2.0] * 8

    def test_a_reused_address_is_not_taken_for_the_tensor_that_was_there(self) -> None:
        swap = swap_of()
        kept, addresses = [], []
        for value in range(40):
            tensor = torch.full((1000,), float(value))
            addresses.append(tensor.data_ptr())
            kept.append(swap.pack(tensor))
            del tensor
        assert len(set(addresses)) < len(addresses), "the allocator reused no address; the trap was not set"
        assert [float(swap.unpack(each)[0]) for each in kept] == [float(value) for value in range(40)]

    def test_copies_go_when_the_graph_goes(self) -> None:
        swap = swap_of()
        kept = swap.pack(torch.ones(8))
        assert swap.live_host_bytes() == 32
        del kept
        gc.collect()
        assert swap.live_host_bytes() == 0


class TestWhatStays:
    @pytest.mark.parametrize(
        "tensor",
        [torch.ones(4), torch.arange(100), torch.ones(100, dtype=torch.bool), torch.eye(20).to_sparse()],
        ids=["small", "integers", "booleans", "sparse"],
    )
    def test_small_integer_and_sparse_tensors_stay(self, tensor: torch.Tensor) -> None:
        swap = swap_of(min_bytes=64)
        assert restored(swap, tensor) is tensor

    def test_parameters_and_buffers_and_their_views_stay(self) -> None:
        model = convnet()
        swap = swap_of(model)
        with swap.context():
            pass
        for tensor in (model.head.weight.detach().t(), model.blocks[0].norm.running_mean):  # type: ignore[index,union-attr,operator]
            assert restored(swap, tensor) is tensor

    def test_a_write_to_what_stayed_is_an_error_as_it_is_without_hooks(self) -> None:
        swap = swap_of(min_bytes=1000)
        inputs = torch.ones(4, requires_grad=True)
        with swap.context():
            middle = inputs * 2
            loss = (middle * middle).sum()
        middle.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class TestHostMemory:
    """Page-locked memory cannot be paged out: without a bound, a large batch takes the whole machine down."""

    def test_copies_up_to_the_bound_are_made_and_no_more(self) -> None:
        swap = swap_of(max_host_bytes=3 * 1024)
        kept = [swap.pack(torch.ones(256)) for _ in range(3)]
        with pytest.raises(
            MethodRefusedError, match=r"swap needs more than 3\.00 KiB of page-locked host memory; give"
        ):
            swap.pack(torch.ones(256))
        assert swap.live_host_bytes() == 3 * 1024
        assert all(torch.equal(swap.unpack(each), torch.ones(256)) for each in kept)

    def test_a_copy_counts_as_the_power_of_two_that_its_allocator_takes(self) -> None:
        swap = swap_of(max_host_bytes=2048)
        with pytest.raises(MethodRefusedError, match="page-locked"):
            swap.pack(torch.ones(513))  # 2052 bytes: 4096 of page-locked memory
        kept = swap.pack(torch.ones(257))  # 1028 bytes: all 2048
        with pytest.raises(MethodRefusedError, match="page-locked"):
            swap.pack(torch.ones(1))
        del kept

    def test_a_tensor_that_is_copied_already_takes_no_more(self) -> None:
        tensor, swap = torch.ones(256), swap_of(max_host_bytes=1024)
        kept = [swap.pack(each) for each in (tensor, tensor.view(16, 16), tensor.detach())]
        assert len(kept) == 3

    def test_what_a_backward_pass_gave_back_can_be_taken_again(self) -> None:
        swap = swap_of(max_host_bytes=1024)
        for _ in range(10):
            assert swap.unpack(swap.pack(torch.ones(256))).sum() == 256

    def test_the_bound_is_a_share_of_what_is_free_when_it_is_applied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def free(count: int) -> None:
            monkeypatch.setattr(
                "advisor.methods.activations.activation_storage.host_memory",
                lambda: HostMemory(total_bytes=2**30, free_bytes=count),
            )

        roomy, tight = training_of("convnet"), training_of("convnet")
        free(2**30)
        Swap().apply(roomy, min_bytes=1)
        free(2**20)
        Swap().apply(tight, min_bytes=1)
        roomy.step(images(4))
        with pytest.raises(MethodRefusedError, match=r"more than 614 KiB"):
            tight.step(images(4))


class TestLifetimes:
    def test_a_graph_that_is_dropped_without_a_backward_pass_is_freed(self) -> None:
        """Trap: what an operator returned knows its graph; held by it as it is, neither is ever freed."""
        swap = swap_of(min_bytes=1000)  # Nothing is moved: everything is passed through.
        inputs = torch.ones(8, requires_grad=True)
        with swap.context():
            out = inputs.exp().sin().softmax(0)
        storage = StorageWeakRef(out.untyped_storage())  # type: ignore[no-untyped-call]
        del out
        assert storage.expired()  # type: ignore[no-untyped-call]

    def test_what_is_saved_several_times_is_restored_once_for_all(self) -> None:
        swap, tensor = swap_of(), torch.randn(4, 6)
        packed = [swap.pack(each) for each in (tensor, tensor.t(), tensor[1:])]
        whole, transposed, part = (swap.unpack(each) for each in packed)
        assert transposed.data_ptr() == whole.data_ptr() != tensor.data_ptr()
        assert part.data_ptr() != whole.data_ptr()  # Another range of the storage is another copy.
        assert torch.equal(transposed, tensor.t())


class Stashing(torch.autograd.Function):
    """Keeps its input where no hook sees it."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.inputs = inputs * 1
        return inputs * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


class TestHiddenTensors:
    """Tensors that a custom function keeps as attributes stay on the device whatever the hooks do."""

    def model(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Training:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(256))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return function((inputs * self.scale).sin()).sum()

        training = Training(Model())
        Swap().apply(training, min_bytes=1)
        return training

    def test_they_are_reported_once_with_their_bytes(self) -> None:
        training = self.model(Stashing.apply)  # type: ignore[arg-type]
        for _ in range(2):
            training.step(torch.ones(256))
        (note,) = training.notes
        assert "1.00 KiB of activations" in note
        assert "StashingBackward keeps them as attributes" in note

    def test_a_function_that_saves_as_it_should_is_not(self) -> None:
        training = self.model(lambda values: values.relu())
        training.step(torch.ones(256))
        assert training.notes == []


class TestInTraining:
    def test_gradients_are_bit_equal_and_activations_really_move(self) -> None:
        gradients = []
        for swapped in (False, True):
            training = training_of("convnet")
            if swapped:
                Swap().apply(training, min_bytes=1)
            torch.manual_seed(0)
            training.backward(training.forward(images(4)))
            gradients.append([parameter.grad for parameter in training.model.parameters()])
            assert training.notes == []
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))

    def test_the_same_graph_can_go_backward_twice(self) -> None:
        inputs = torch.ones(8, requires_grad=True)
        with swap_of().context():
            loss = inputs.exp().sin().sum()
        first = torch.autograd.grad(loss, inputs, retain_graph=True)[0]
        assert torch.equal(torch.autograd.grad(loss, inputs)[0], first)

    def test_moving_nothing_is_said_once(self) -> None:
        training = training_of("convnet")
        Swap().apply(training, min_bytes=2**30)
        for _ in range(2):
            training.step(images(2))
        assert [note for note in training.notes if "moved nothing" in note] == training.notes
        assert len(training.notes) == 1
