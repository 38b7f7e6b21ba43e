"""Copies beside the computation: in which order they are begun, how much is on its way, and that values survive."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.methods.activations._host_copies import HostBound, HostCopy
from advisor.methods.activations._overlapped_copies import Copier, OverlappedMove, copier_by_device
from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.training.saved.tensor_pipeline import SavedTensorPipeline
from tests.methods.tiny import images, training_of


class Recorder(Copier):
    """Copies at once, writes down what is asked of it, and calls no copy out done until it is waited for.

    A tensor is known by its first value.
    """

    def __init__(self) -> None:
        self.events: list[str] = []

    def copy_out(self, flat: torch.Tensor) -> HostCopy:
        self.events.append(f"out {int(flat[0])}")
        return super().copy_out(flat)

    def is_out(self, copy: HostCopy) -> bool:
        return False

    def release(self, copy: HostCopy) -> None:
        self.events.append(f"release {int(copy.host[0])}")

    def copy_in(self, copy: HostCopy) -> tuple[torch.Tensor, Any]:
        self.events.append(f"in {int(copy.host[0])}")
        return super().copy_in(copy)[0], int(copy.host[0])

    def wait(self, arriving: Any) -> None:
        self.events.append(f"wait {arriving}")

    def take(self) -> list[str]:
        taken, self.events = self.events, []
        return taken


class Passes:
    """Forward and backward passes over tensors of 1 KiB, numbered in the order in which they are saved."""

    def __init__(self, ahead: float, max_bytes: int = 2**30, min_bytes: int = 1) -> None:
        self.recorder = Recorder()
        self.bound = HostBound("overlapped_swap", max_bytes)
        self.stage = OverlappedMove(min_bytes, self.bound, ahead=ahead, copier=lambda tensor: self.recorder)
        self.pipeline = SavedTensorPipeline(torch.nn.Module, [])
        self.pipeline.add(self.stage, "nothing")
        self.packed: list[Any] = []

    def forward(self, count: int = 8) -> list[str]:
        self.packed = []
        with self.pipeline.context():
            for number in range(count):
                self.packed.append(self.pipeline.pack(torch.full((256,), float(number))))
        return self.recorder.take()

    def ask(self, number: int) -> list[str]:
        assert torch.equal(self.pipeline.unpack(self.packed[number]), torch.full((256,), float(number)))
        return self.recorder.take()

    def backward(self) -> None:
        for number in reversed(range(len(self.packed))):
            self.ask(number)

    def second_forward(self, count: int = 8) -> list[str]:
        """The first pass has no sizes to go by."""
        self.forward(count)
        self.backward()
        self.packed = []
        return self.forward(count)


class TestOut:
    def test_the_first_pass_moves_everything_one_at_a_time(self) -> None:
        assert Passes(ahead=0.25).forward(3) == ["out 0", "out 1", "release 0", "out 2", "release 1"]

    def test_what_is_saved_last_stays_and_the_rest_leaves_within_the_limit(self) -> None:
        events = Passes(ahead=0.25).second_forward()  # A quarter of 8 KiB: two tensors.
        # 0 leaves when 2 is saved, and computation waits for it when a third is on its way; 4 and 5 still are.
        assert events == [
            "out 0",
            "out 1",
            "out 2",
            "release 0",
            "out 3",
            "release 1",
            "out 4",
            "release 2",
            "out 5",
            "release 3",
        ]

    def test_device_memory_is_held_until_the_copy_is_out_and_no_longer(self) -> None:
        passes = Passes(ahead=0.25)
        passes.second_forward()
        assert len(passes.stage._leaving) == 2
        passes.ask(7)
        assert len(passes.stage._leaving) == 0

    def test_a_tensor_below_the_threshold_stays(self) -> None:
        assert Passes(ahead=0.25, min_bytes=1025).forward() == []

    def test_a_graph_that_is_dropped_gives_its_host_memory_back(self) -> None:
        passes = Passes(ahead=0.25)
        passes.second_forward()
        assert sum(copy.host.nbytes for copy in passes.bound.copies) == 6 * 1024
        passes.packed = []
        gc.collect()
        passes.stage.begin()
        assert not passes.bound.copies

    def test_the_host_memory_is_bounded(self) -> None:
        passes = Passes(ahead=0.25, max_bytes=3 * 1024)
        with pytest.raises(MethodRefusedError, match=r"overlapped_swap needs more than 3\.00 KiB of page-locked"):
            passes.forward()


class TestIn:
    def test_tensors_are_brought_back_before_they_are_asked_for_in_reverse_order(self) -> None:
        passes = Passes(ahead=0.25)
        passes.second_forward()
        first = passes.ask(7)
        assert [event for event in first if not event.startswith("release")] == ["in 5", "in 4"]
        assert passes.ask(6) == []  # On the device, and two are on their way already.
        assert passes.ask(5) == ["wait 5", "in 3"]
        assert passes.ask(4) == ["wait 4", "in 2"]
        assert [passes.ask(number) for number in (3, 2, 1, 0)] == [
            ["wait 3", "in 1"],
            ["wait 2", "in 0"],
            ["wait 1"],
            ["wait 0"],
        ]

    def test_a_limit_below_one_tensor_still_brings_one(self) -> None:
        passes = Passes(ahead=0.01)
        passes.second_forward(4)
        assert [event for event in passes.ask(3) if "release" not in event] == ["in 3", "wait 3", "in 2"]
        assert passes.ask(2) == ["wait 2", "in 1"]

    def test_another_order_is_served_and_what_is_passed_over_does_not_stop_the_rest(self) -> None:
        passes = Passes(ahead=0.25)
        passes.second_forward()
        passes.ask(7)
        assert passes.ask(1) == ["in 1", "wait 1", "in 0"]  # 5 and 4 lie ready, and count no longer.
        assert passes.ask(4) == ["wait 4"]
        assert passes.ask(3) == ["in 3", "wait 3"]

    def test_a_dropped_tensor_is_not_brought_back(self) -> None:
        passes = Passes(ahead=0.25)
        passes.second_forward()
        passes.packed[5] = passes.packed[4] = None
        gc.collect()
        assert [event for event in passes.ask(7) if "release" not in event] == ["in 3", "in 2"]

    def test_what_is_saved_several_times_comes_back_once(self) -> None:
        passes = Passes(ahead=0.25)
        tensor = torch.zeros(256)
        with passes.pipeline.context():
            packed = [passes.pipeline.pack(each) for each in (tensor, tensor.view(16, 16), tensor.detach())]
        passes.recorder.take()
        back = [passes.pipeline.unpack(each) for each in packed]
        assert [event for event in passes.recorder.take() if "in" in event.split()] == ["in 0"]
        assert len({each.data_ptr() for each in back}) == 1
        again = passes.pipeline.unpack(packed[0])  # Everyone had it: for a second backward pass it is made anew.
        assert again.data_ptr() not in {tensor.data_ptr(), back[0].data_ptr()}

    def test_two_graphs_at_a_time_do_not_mix(self) -> None:
        passes = Passes(ahead=0.25)
        passes.second_forward(4)
        earlier = passes.packed
        passes.forward(4)
        for number in reversed(range(4)):
            passes.ask(number)
            assert float(passes.pipeline.unpack(earlier[number])[0]) == number


class TestInPlaceWrites:
    def test_a_write_to_what_stayed_is_an_error_as_it_is_without_hooks(self) -> None:
        passes = Passes(ahead=0.5)
        passes.second_forward(2)
        tensor = torch.ones(128)
        with passes.pipeline.context():
            packed = passes.pipeline.pack(tensor)
            tensor.add_(1)
            later = passes.pipeline.pack(tensor)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            passes.pipeline.unpack(packed)
        assert passes.pipeline.unpack(later)[0] == 2

    def test_a_write_to_what_is_on_its_way_out_is_an_error_too(self) -> None:
        passes = Passes(ahead=0.1)
        tensor = torch.ones(256)
        with passes.pipeline.context():
            packed = passes.pipeline.pack(tensor)
            assert passes.recorder.take() == ["out 1"]
            tensor.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            passes.pipeline.unpack(packed)

    def test_a_write_to_what_is_gone_does_not_change_it(self) -> None:
        passes = Passes(ahead=0.1)
        tensor = torch.ones(256)
        with passes.pipeline.context():
            packed = passes.pipeline.pack(tensor)
            passes.pipeline.pack(torch.zeros(256))
            assert passes.recorder.take() == ["out 1", "out 0", "release 1"]
        tensor.add_(1)
        assert torch.equal(passes.pipeline.unpack(packed), torch.ones(256))


def test_a_cpu_and_fake_tensors_are_copied_at_once_and_one_copier_serves_a_device() -> None:
    find = copier_by_device()
    assert isinstance(find(torch.ones(1)), Copier)
    assert find(torch.ones(1)) is find(torch.ones(2))


@pytest.mark.parametrize("ahead", [0.1, 0.25])
def test_gradients_are_bit_equal_over_several_steps(ahead: float) -> None:
    states = []
    for settings in ([], [use("overlapped_swap", min_bytes=2**20, ahead=ahead)]):
        training = training_of("convnet")
        apply_settings(training, settings)
        for step in range(3):
            torch.manual_seed(step)
            training.step(images(8, seed=step))
        states.append(training.state_dict()["model"])
        assert training.notes == []
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
