"""Methods that store activations, together and with those that decide which there are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.methods.compose import apply_uses
from advisor.methods.host_copies import HostCopy
from advisor.methods.saved_tensors import Encoded, Place, SavedTensorPipeline
from advisor.methods.use import MethodUse, use
from tests.contract.observe import observe, relative_error, same
from tests.methods.tiny import images, training_of

SWAP = use("swap", min_bytes=2**20)
OVERLAPPED = use("overlapped_swap", min_bytes=2**20, ahead=0.1)
CHECKPOINT = use("checkpoint", every=1)
COMPRESS = [use("compress_activations", bits=bits) for bits in (8, 4, 2)]
FP8 = use("fp8_activations", format="e4m3")
SAMPLES = 64
"""A convolutional activation is then 8 MiB, and 576 KiB in 2 bits."""


class Stage:
    """Adds a digit to every value, and takes it away again."""

    exact = True

    def __init__(self, place: Place, digit: int, order: list[str]) -> None:
        self.place = place
        self.digit = digit
        self.order = order

    def begin(self) -> None:
        pass

    def accepts(self, tensor: torch.Tensor) -> bool:
        return True

    def encode(self, flat: torch.Tensor) -> Encoded:
        self.order.append(f"encode {self.place.name} of {int(flat[0])}")

        def restore(left: torch.Tensor | None) -> torch.Tensor:
            assert left is not None
            self.order.append(f"restore {self.place.name} of {int(left[0])}")
            return (left - self.digit) / 10

        return Encoded(flat * 10 + self.digit, restore)


@pytest.mark.parametrize("places", list(itertools.permutations(Place)))
def test_stages_run_in_the_order_of_their_places_and_back_in_reverse(places: tuple[Place, ...]) -> None:
    order: list[str] = []
    pipeline = SavedTensorPipeline(torch.nn.Module, [])
    for place in places:
        pipeline.add(Stage(place, digit=int(place), order=order), "nothing")
    assert pipeline.unpack(pipeline.pack(torch.full((3,), 7.0))).tolist() == [7.0] * 3
    assert order == ["encode FORMAT of 7", "encode HOST of 71", "restore HOST of 712", "restore FORMAT of 71"]


def host_and_device_bytes(uses: list[MethodUse], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Bytes on the host, and bytes of activations on the device, after the second forward pass."""
    copies: list[HostCopy] = []
    plain = HostCopy.__init__

    def init(self: HostCopy, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        copies.append(self)

    with monkeypatch.context() as patch:
        patch.setattr("tests.contract.observe.MODELS", {"convnet": (None, lambda seed: images(SAMPLES, seed))})
        held = observe("convnet", uses, patch).held_bytes
    training = training_of("convnet")
    apply_uses(training, uses)
    with monkeypatch.context() as patch:
        patch.setattr(HostCopy, "__init__", init)
        training.forward(images(SAMPLES))
    return sum(copy.bytes for copy in copies), held


class TestCompressionWithSwap:
    @pytest.mark.parametrize("swap", [SWAP, OVERLAPPED], ids=lambda each: each.name)
    def test_the_host_takes_less_by_the_factor_of_compression_and_the_device_next_to_nothing(
        self, swap: MethodUse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, left = host_and_device_bytes([swap], monkeypatch)
        coded, left_too = host_and_device_bytes([COMPRESS[0], swap], monkeypatch)
        _, compressed_alone = host_and_device_bytes([COMPRESS[0]], monkeypatch)
        _, plain = host_and_device_bytes([], monkeypatch)
        masks = 4 * SAMPLES * 32 * 32 * 32 * 4  # On a CPU dropout saves floats; they are no activations and exact.
        assert (whole - masks) / (coded - masks) == pytest.approx(3.88, rel=0.01)
        assert compressed_alone < 0.6 * plain
        assert left_too <= left + plain // 100
        if swap is SWAP:
            assert left_too < 0.05 * plain

    @pytest.mark.parametrize("swap", [SWAP, OVERLAPPED], ids=lambda each: each.name)
    @pytest.mark.parametrize("form", [*COMPRESS, FP8], ids=lambda each: each.label)
    def test_gradients_are_those_of_the_format_alone(
        self, swap: MethodUse, form: MethodUse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for model in ("gpt2", "convnet"):
            alone = observe(model, [form], monkeypatch)
            together = observe(model, [form, swap], monkeypatch)
            assert all(map(same, together.gradients, alone.gradients))
            assert same(together.state, alone.state)


class TestWithCheckpoint:
    @pytest.mark.parametrize("swap", [SWAP, OVERLAPPED], ids=lambda each: each.name)
    def test_block_inputs_move_and_nothing_changes(self, swap: MethodUse, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = observe("convnet", [], monkeypatch)
        both = observe("convnet", [CHECKPOINT, swap], monkeypatch)
        assert all(map(same, both.gradients, plain.gradients))
        assert same(both.state, plain.state)

    @pytest.mark.parametrize(("form", "error"), [(COMPRESS[0], 0.05), (COMPRESS[1], 0.3), (FP8, 0.1)], ids=str)
    def test_block_inputs_are_coded(self, form: MethodUse, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
        for model in ("gpt2", "convnet"):
            plain, alone = observe(model, [], monkeypatch), observe(model, [CHECKPOINT], monkeypatch)
            both = observe(model, [CHECKPOINT, form], monkeypatch)
            assert both.held_bytes < 0.9 * alone.held_bytes
            assert torch.equal(both.losses[0], plain.losses[0])  # The recomputation draws the same dropout.
            assert 0.0 < relative_error(both.gradients[0], plain.gradients[0]) < error


class TestWithAutocast:
    @pytest.mark.parametrize("swap", [SWAP, OVERLAPPED], ids=lambda each: each.name)
    def test_swapping_is_exact(self, swap: MethodUse, monkeypatch: pytest.MonkeyPatch) -> None:
        autocast = use("precision", dtype="bf16")
        alone = observe("gpt2", [autocast], monkeypatch)
        both = observe("gpt2", [autocast, swap], monkeypatch)
        assert all(map(same, both.gradients, alone.gradients))

    @pytest.mark.parametrize(("form", "error"), [(COMPRESS[0], 0.02), (COMPRESS[1], 0.3), (FP8, 0.06)], ids=str)
    def test_a_format_adds_its_own_error_and_saves(
        self, form: MethodUse, error: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        autocast = use("precision", dtype="bf16")
        alone = observe("gpt2", [autocast], monkeypatch)
        both = observe("gpt2", [autocast, form], monkeypatch)
        assert both.held_bytes < 0.9 * alone.held_bytes
        assert 0.0 < relative_error(both.gradients[0], alone.gradients[0]) < error


@pytest.mark.parametrize("uses", [[SWAP], [OVERLAPPED], [COMPRESS[2]], [FP8], [COMPRESS[2], SWAP]], ids=str)
def test_fake_tensors_are_stored_too(uses: list[MethodUse]) -> None:
    """The predictor must see what a method saves: a pipeline that took no fake tensor would save nothing there."""
    with FakeTensorMode():
        training = training_of("convnet")
        apply_uses(training, uses)
        training.step(images(SAMPLES))
    assert training.notes == []
