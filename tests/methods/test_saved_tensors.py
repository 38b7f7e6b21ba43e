"""Saved tensors on the host: the right values come back, whatever happened to the memory in between."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.host_copies import HostBound, MoveToHost
from advisor.methods.saved_tensors import SavedTensorPipeline
from advisor.methods.swap import Swap
from advisor.problem.host import HostMemory
from tests.methods.tiny import convnet, images, training_of


class SavedTensorSwap(SavedTensorPipeline):
    """A pipeline whose only stage moves to the host."""

    def __init__(self, model: nn.Module, *, min_bytes: int, max_host_bytes: int) -> None:
        super().__init__(lambda: model, [])
        self.bound = HostBound("swap", max_host_bytes)
        self.stage = MoveToHost(min_bytes=min_bytes, bound=self.bound)
        self.add(self.stage, "nothing")

    @property
    def swapped_bytes(self) -> int:
        return self.stage.swapped_bytes

    def live_host_bytes(self) -> int:
        return self.bound.live_bytes()


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
        assert swap.swapped_bytes == 96
        assert torch.equal(swap.unpack(kept[2]), tensor.t())

    def test_slices_of_one_projection_share_one_copy(self) -> None:
        projection, swap = torch.randn(2, 3, 12), swap_of()
        parts = projection.split(4, dim=-1)
        kept = [swap.pack(part) for part in parts]
        assert swap.swapped_bytes == projection.numel() * 4
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
        assert swap.swapped_bytes == 0

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
                "advisor.methods.swap.host_memory", lambda: HostMemory(total_bytes=2**30, free_bytes=count)
            )

        roomy, tight = training_of("convnet"), training_of("convnet")
        free(2**30)
        Swap().apply(roomy, min_bytes=1)
        free(2**20)
        Swap().apply(tight, min_bytes=1)
        roomy.step(images(4))
        with pytest.raises(MethodRefusedError, match=r"more than 614 KiB"):
            tight.step(images(4))


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
