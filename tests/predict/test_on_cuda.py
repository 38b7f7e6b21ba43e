"""A trace on a CPU that stands for a CUDA device: its optimizers, its attention, and what would be the host's."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.methods.setting import MethodSetting, use
from advisor.predict.cuda.on_cuda import on_cuda, standing_for
from advisor.predict.prediction import Category, CudaDevice, MemoryPrediction
from advisor.predict.step_work import Kind
from advisor.predict.trace.envelope import predict_aligned
from advisor.predict.trace.step_trace import StepTrace, faked
from tests.methods.tiny import MODELS
from tests.predict.steps import trace_step
from tests.predict.test_predicted_memory import built

CPU = torch.device("cpu")
HOPPER = CudaDevice(compute_capability=(9, 0), multiprocessors=132)
MIB = 2**20


POLICIES: dict[str, tuple[MethodSetting, ...]] = {
    "": (),
    "swap": (use("swap", min_bytes=MIB),),
    "overlapped_swap": (use("overlapped_swap", min_bytes=MIB, ahead=0.1),),
    "host_optimizer": (use("host_optimizer"),),
}


def traces(model: str, policy: str = "", *, on_gpu: bool = True, **options: object) -> list[StepTrace]:
    found = []
    for micro_batch in (16, 32):
        mode = FakeTensorMode()
        build = functools.partial(built, model, POLICIES[policy], micro_batch=micro_batch, **options)
        with standing_for(HOPPER) if on_gpu else contextlib.nullcontext():
            batch = faked(MODELS[model][1](micro_batch), mode)
            found.append(
                trace_step(build, batch, micro_batch=micro_batch, device=CPU, mode=mode, stands_for_another=on_gpu)
            )
    return found


@functools.cache
def traced_once(model: str, policy: str, on_gpu: bool) -> list[StepTrace]:
    """One trace for all tests that ask for it."""
    return traces(model, policy, on_gpu=on_gpu)


def predicted(model: str, policy: str = "", *, on_gpu: bool = True) -> MemoryPrediction:
    first, second = traced_once(model, policy, on_gpu)
    return predict_aligned(first, second)


def parameters(prediction: MemoryPrediction) -> int:
    return prediction.breakdown(32)[Category.PARAMETERS]


def test_optimizers_need_a_value_of_every_parameter_at_once() -> None:
    here, there = predicted("gpt2", on_gpu=False), predicted("gpt2")
    one_by_one, at_once = (one.peak_moment(32, "optimizer") for one in (here, there))
    difference = at_once.live.at(32) - one_by_one.live.at(32)
    assert at_once.operator.startswith("_foreach_")
    assert at_once.parts[Category.TEMPORARIES].at(32) == pytest.approx(parameters(there), rel=0.01)
    assert 0.5 * parameters(there) < difference < parameters(there), "but for the largest one"


def test_an_optimizer_that_was_told_to_go_one_by_one_does() -> None:
    told = functools.partial(torch.optim.AdamW, foreach=False)
    moment = predict_aligned(*traces("gpt2", build_optimizer=told)).peak_moment(32, "optimizer")
    assert moment.parts[Category.TEMPORARIES].at(32) < 0.5 * moment.parts[Category.PARAMETERS].at(32)


def test_the_choice_of_optimizers_is_given_back() -> None:
    before = predicted("convnet", on_gpu=False).phase_peaks(32)
    assert predicted("convnet").phase_peaks(32) != before
    assert predict_aligned(*traces("convnet", on_gpu=False)).phase_peaks(32) == before


@pytest.mark.parametrize("swap", ["swap", "overlapped_swap"])
@pytest.mark.parametrize("model", ["convnet", "gpt2"])
def test_activations_on_the_host_are_no_memory_of_the_device(model: str, swap: str) -> None:
    plain, swapped = predicted(model), predicted(model, swap)
    assert swapped.activations.at(32) < 0.5 * plain.activations.at(32)
    assert swapped.peak(32) < 0.6 * plain.peak(32)
    here, plain_here = predicted(model, swap, on_gpu=False), predicted(model, on_gpu=False)
    assert here.peak(32) > plain_here.peak(32), "where the host is the device its copies are in the same memory"


def test_an_optimizer_on_the_host_leaves_parameters_and_one_gradient_at_a_time() -> None:
    plain, offloaded = predicted("gpt2"), predicted("gpt2", "host_optimizer")
    assert plain.breakdown(32)[Category.OPTIMIZER_STATE] > parameters(plain)
    assert offloaded.breakdown(32).get(Category.OPTIMIZER_STATE, 0) < 1024, "counters of steps"
    step = offloaded.peak_moment(32, "optimizer")
    assert step.live.at(32) < 1.01 * parameters(offloaded)


def test_parameters_come_to_the_device_in_the_order_of_their_move() -> None:
    """What the host does before, such as giving them their first values, takes nothing there."""
    first, _ = traced_once("gpt2", "", True)
    moved: dict[int, int] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    built("gpt2", ()).model._apply(move)
    assert len(moved) > 10
    assert first.events[: first.moved] == list(enumerate(moved.values()))


def test_the_work_is_counted_unless_there_are_copies_between_host_and_device() -> None:
    plain, _ = traced_once("gpt2", "", True)
    assert plain.works
    assert sum(work.flops for work in plain.works) > 0
    convnet, _ = traced_once("convnet", "", True)
    convolutions = {work.number_format for work in convnet.works or () if work.kind is Kind.CONVOLUTION}
    assert convolutions == {"tf32"}, "torch lets cuDNN do so unless it is told otherwise"
    swapped, _ = traced_once("gpt2", "swap", True)
    assert swapped.works is None


def completed(limit_bytes: int, model: str = "gpt2") -> MemoryPrediction:
    first, second = traced_once(model, "", True)
    prediction = predict_aligned(first, second)
    return on_cuda(prediction, first, second, micro_batch=16, limit_bytes=limit_bytes, device=HOPPER)


def test_what_the_allocator_reserves_is_replayed_without_and_with_expandable_segments() -> None:
    limit = 1024 * MIB
    prediction = completed(limit)
    native, expandable = prediction.reserved
    assert (native.expandable, expandable.expandable) == (False, True)
    for one in prediction.reserved:
        assert one.micro_batch == 16
        assert one.peak_bytes >= prediction.peak(16) + 32 * MIB
        assert 16 < one.largest_batch <= prediction.largest_batch(limit)
        assert one.largest_peak_bytes <= limit + 20 * MIB, "expandable segments are mapped in whole pages"


def test_convolutions_are_said_to_need_more() -> None:
    assert any("cuDNN" in note for note in completed(1024 * MIB, "convnet").notes)
    assert not any("cuDNN" in note for note in completed(1024 * MIB).notes)
