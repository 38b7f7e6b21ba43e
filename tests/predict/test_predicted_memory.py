"""A trace without memory says to the byte what a real step takes, also far from the batches that were traced."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.measure.measurement import MemoryMeasurement
from advisor.measure.memory.cpu import CpuMemory
from advisor.measure.memory.storages import HostData
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.predict.prediction import Category, MemoryPrediction
from advisor.predict.trace.envelope import are_alike, predict_aligned
from advisor.predict.trace.scratch import measured_scratch
from advisor.predict.trace.step_trace import StepTrace, faked, faked_model, with_scratch
from advisor.training.training import Training
from tests.methods.tiny import MODELS, gpt2, text, training_of
from tests.predict.steps import trace_step

CPU = torch.device("cpu")
TOLERANCE = 0.005
"""transformers builds attention masks while it is traced that it leaves out when it sees that they are empty."""

POLICIES: list[tuple[MethodSetting, ...]] = [
    (),
    (use("checkpoint", every=1),),
    (use("recursive_checkpoint"),),
    (use("few_bit_activation", bits=4), use("checkpoint", every=2)),
    (use("fused_optimizer"), use("channels_last")),
]
PLAIN = 0


def settings_of_row(model: str, index: int) -> tuple[MethodSetting, ...]:
    return tuple(one for one in POLICIES[index] if (model, one.name) not in REFUSED)


REFUSED = {("gpt2", "channels_last"), ("convnet", "few_bit_activation")}


def built(model: str, settings: tuple[MethodSetting, ...], **options: object) -> Training:
    training = training_of(model, **options)  # type: ignore[arg-type]
    apply_settings(training, settings)
    return training


@functools.cache
def predicted(model: str, policy: int, passes: int = 1) -> MemoryPrediction:
    settings = settings_of_row(model, policy)
    traces = []
    for micro_batch in (2, 4):
        mode = FakeTensorMode()
        batch = faked(MODELS[model][1](micro_batch * passes), mode)
        build = functools.partial(built, model, settings, micro_batch=micro_batch)
        traces.append(trace_step(build, batch, micro_batch=micro_batch, device=CPU, mode=mode))
    scratch = measured_scratch(call for trace in traces for _, call, _ in trace.calls)
    first, second = (with_scratch(trace, scratch) for trace in traces)
    assert are_alike(first, second)
    return predict_aligned(first, second)


@functools.cache
def measured(model: str, policy: int, micro_batch: int, passes: int = 1) -> MemoryMeasurement:
    host_data = HostData()
    host_data.add_living(CPU)
    training = built(model, settings_of_row(model, policy), micro_batch=micro_batch)
    batch = MODELS[model][1](micro_batch * passes)
    host_data.add(batch, CPU)
    training.step(batch)
    memory = CpuMemory(CPU, 2**40, host_data).measured_step(training, batch)[1]
    training.close()
    return memory


@pytest.mark.parametrize(
    "policy", range(len(POLICIES)), ids=lambda index: "+".join(u.name for u in POLICIES[index]) or "plain"
)
@pytest.mark.parametrize("model", MODELS)
def test_the_peak_at_a_batch_that_was_not_traced(model: str, policy: int) -> None:
    prediction, real = predicted(model, policy), measured(model, policy, 16)
    assert prediction.peak(16) == pytest.approx(real.peak_bytes, rel=TOLERANCE)
    phases = prediction.phase_peaks(16)
    assert phases["forward"] == pytest.approx(real.forward_peak_bytes, rel=2 * TOLERANCE)
    assert phases["backward"] == pytest.approx(real.backward_peak_bytes, rel=2 * TOLERANCE)


def test_what_lives_at_the_peak_is_what_a_real_step_has() -> None:
    prediction, real = predicted("convnet", PLAIN), measured("convnet", PLAIN, 16)
    parts = prediction.breakdown(16)
    assert parts[Category.PARAMETERS] == real.breakdown.parameters
    assert parts[Category.OPTIMIZER_STATE] == real.breakdown.optimizer_state
    assert prediction.activations.at(16) == pytest.approx(real.breakdown.activations, rel=TOLERANCE)


def test_a_second_pass_keeps_the_gradients_of_the_first() -> None:
    prediction, real = predicted("convnet", PLAIN, passes=2), measured("convnet", PLAIN, 16, passes=2)
    assert prediction.peak(16) == pytest.approx(real.peak_bytes, rel=TOLERANCE)
    assert prediction.peak(16) > predicted("convnet", PLAIN).peak(16)


def test_a_model_that_was_built_with_values_is_traced_as_one_built_without() -> None:
    real_model = gpt2(layers=2)
    names = {name for name, _ in real_model.named_parameters()}
    trace = trace_at(4, lambda mode: faked_model(real_model, mode))
    plain, larger = (trace_at(micro_batch, lambda mode: gpt2(layers=2)) for micro_batch in (4, 8))
    assert names == {name for name, _ in real_model.named_parameters()}, "tied parameters stay tied"
    assert predict_aligned(trace, larger).peak(4) == predict_aligned(plain, larger).peak(4)


def trace_at(micro_batch: int, build_model: Callable[[FakeTensorMode], torch.nn.Module]) -> StepTrace:
    mode = FakeTensorMode()
    return trace_step(
        lambda: Training(build_model(mode), build_optimizer=torch.optim.AdamW),
        faked(text(micro_batch), mode),
        micro_batch=micro_batch,
        device=CPU,
        mode=mode,
    )
