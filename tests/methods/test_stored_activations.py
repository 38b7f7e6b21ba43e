"""Methods that store activations, together and with those that decide which there are."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.methods.activations._host_copies import HostCopy
from advisor.methods.catalogue import get_method
from advisor.methods.setting import MethodSetting, use
from advisor.training.saved.tensor_pipeline import Encoded, Place, SavedTensorPipeline
from tests.contract.observe import LiveBytes, relative_error, same
from tests.methods.tiny import MODELS, images, training_of

SWAP = use("swap", min_bytes=1)
OVERLAPPED = use("overlapped_swap", min_bytes=1, ahead=0.1)
AUTOCAST = use("precision", dtype="bf16")
CHECKPOINT = use("checkpoint", every=1)
COMPRESS = [use("compress_activations", bits=bits) for bits in (8, 4, 2)]
FP8 = use("fp8_activations", format="e4m3")


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


@dataclass
class Pass:
    """What one forward and backward pass did."""

    gradients: dict[str, torch.Tensor]
    host_bytes: int
    held_bytes: int
    """On the device after the forward pass."""
    random_state: torch.Tensor


def one_pass(model: str, settings: list[MethodSetting]) -> Pass:
    """One pass, of thresholds that are no choices of a method: for tests, everything is large enough to move."""
    training = training_of(model)
    for each in sorted(settings, key=lambda each: get_method(each.name).stage):
        get_method(each.name).apply(training, **each.parameters)
    live, copies, plain = LiveBytes(), [], HostCopy.__init__

    def init(self: HostCopy, flat: torch.Tensor) -> None:
        plain(self, flat)
        copies.append(self.host.nbytes)
        live.exclude(self.host)

    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch, live:
        patch.setattr(HostCopy, "__init__", init)
        loss = training.forward(MODELS[model][1](4))
    held = live.live()
    training.backward(loss)
    training.close()
    gradients = {str(number): p.grad for number, p in enumerate(training.model.parameters()) if p.grad is not None}
    return Pass(gradients, sum(copies), held, torch.get_rng_state())


@functools.cache
def plain_pass(model: str) -> Pass:
    return one_pass(model, [])


over_models = pytest.mark.parametrize("model", MODELS)
over_swaps = pytest.mark.parametrize("swap", [SWAP, OVERLAPPED], ids=lambda each: each.name)
over_formats = pytest.mark.parametrize("form", [*COMPRESS, FP8], ids=lambda each: each.label)


class TestCompressionWithSwap:
    @over_swaps
    @pytest.mark.parametrize(
        ("form", "factor"), [*zip([*COMPRESS, FP8], (3.88, 7.53, 14.22, 3.94), strict=True)], ids=str
    )
    def test_the_host_takes_less_by_the_factor_of_compression_and_the_device_holds_next_to_nothing(
        self, form: MethodSetting, factor: float, swap: MethodSetting
    ) -> None:
        alone, coded, both = (one_pass("convnet", settings) for settings in ([swap], [form], [form, swap]))
        # What needs no gradient stays exact: inputs, and on a CPU the masks of dropout, which are floats there.
        exact = 4 * (4 * 32 * 32 * 32 * 4) + 4 * 3 * 32 * 32 * 4
        assert (alone.host_bytes - exact) / (both.host_bytes - exact) == pytest.approx(factor, rel=0.02)
        assert both.held_bytes < 0.02 * plain_pass("convnet").held_bytes < 0.1 * coded.held_bytes

    @over_models
    @over_swaps
    @over_formats
    def test_gradients_are_those_of_the_format_alone(
        self, form: MethodSetting, swap: MethodSetting, model: str
    ) -> None:
        alone, both = one_pass(model, [form]), one_pass(model, [form, swap])
        assert both.host_bytes > 0
        assert same(both.gradients, alone.gradients)
        assert torch.equal(both.random_state, plain_pass(model).random_state)


class TestWithCheckpoint:
    @over_models
    @over_swaps
    def test_block_inputs_move_and_nothing_changes(self, swap: MethodSetting, model: str) -> None:
        both = one_pass(model, [CHECKPOINT, swap])
        assert 0 < both.host_bytes < one_pass(model, [swap]).host_bytes
        assert same(both.gradients, plain_pass(model).gradients)
        assert torch.equal(both.random_state, plain_pass(model).random_state)

    @over_models
    @pytest.mark.parametrize(("form", "error"), [(COMPRESS[0], 0.06), (COMPRESS[1], 0.4), (FP8, 0.15)], ids=str)
    def test_block_inputs_are_coded_and_dropout_is_drawn_again_as_it_was(
        self, form: MethodSetting, error: float, model: str
    ) -> None:
        both = one_pass(model, [CHECKPOINT, form])
        assert both.held_bytes < 0.9 * one_pass(model, [CHECKPOINT]).held_bytes
        assert 0.0 < relative_error(both.gradients, plain_pass(model).gradients) < error
        assert torch.equal(both.random_state, plain_pass(model).random_state)


class TestWithAutocast:
    @over_models
    @over_swaps
    def test_swapping_is_exact(self, swap: MethodSetting, model: str) -> None:
        alone, both = one_pass(model, [AUTOCAST]), one_pass(model, [AUTOCAST, swap])
        assert both.host_bytes > 0
        assert same(both.gradients, alone.gradients)

    @over_models
    @pytest.mark.parametrize(("form", "error"), [(COMPRESS[0], 0.02), (COMPRESS[1], 0.3), (FP8, 0.06)], ids=str)
    def test_a_format_adds_its_own_error_and_saves(self, form: MethodSetting, error: float, model: str) -> None:
        alone, both = one_pass(model, [AUTOCAST]), one_pass(model, [AUTOCAST, form])
        assert both.held_bytes < 0.95 * alone.held_bytes
        assert 0.0 < relative_error(both.gradients, alone.gradients) < error


@pytest.mark.parametrize("settings", [[SWAP], [OVERLAPPED], [COMPRESS[2]], [FP8], [COMPRESS[2], SWAP]], ids=str)
def test_fake_tensors_are_stored_too(settings: list[MethodSetting]) -> None:
    """The predictor must see what a method saves: a pipeline that took no fake tensor would save nothing there."""
    with FakeTensorMode():
        training = training_of("convnet")
        for each in settings:
            get_method(each.name).apply(training, **each.parameters)
        training.step(images(64))
    assert training.notes == []
