"""A trace without memory says to the byte what a real step takes, also far from the batches that were traced."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.measure.cpu_memory import CpuMemory
from advisor.measure.measurement import MemoryMeasurement
from advisor.measure.storages import HostData
from advisor.methods.compose import apply_uses
from advisor.methods.training import Training
from advisor.methods.use import MethodUse, use
from advisor.predict.envelope import are_alike, predict_aligned
from advisor.predict.prediction import Category, MemoryPrediction
from advisor.predict.scratch import measured_scratch
from advisor.predict.step_trace import faked, faked_model, trace_step, with_scratch
from tests.methods.tiny import MODELS, training_of

CPU = torch.device("cpu")
TOLERANCE = 0.005
"""transformers builds attention masks while it is traced that it leaves out when it sees that they are empty."""

POLICIES: list[tuple[MethodUse, ...]] = [
    (),
    (use("checkpoint", every=1),),
    (use("recursive_checkpoint"),),
    (use("few_bit_activation", bits=4), use("checkpoint", every=2)),
    (use("fused_optimizer"), use("channels_last")),
]


def uses_of(model: str, index: int) -> tuple[MethodUse, ...]:
    return tuple(one for one in POLICIES[index] if (model, one.name) not in REFUSED)


REFUSED = {("gpt2", "channels_last"), ("convnet", "few_bit_activation")}


def built(model: str, uses: tuple[MethodUse, ...], **options: object) -> Training:
    training = training_of(model, **options)  # type: ignore[arg-type]
    apply_uses(training, uses)
    return training


def predicted(
    model: str, uses: tuple[MethodUse, ...], batches: tuple[int, int] = (2, 4), passes: int = 1
) -> MemoryPrediction:
    traces = []
    for micro_batch in batches:
        mode = FakeTensorMode()
        batch = faked(MODELS[model][1](micro_batch * passes), mode)
        build = functools.partial(built, model, uses, micro_batch=micro_batch)
        traces.append(trace_step(build, batch, micro_batch=micro_batch, device=CPU, mode=mode))
    scratch = measured_scratch(call for trace in traces for _, call, _ in trace.calls)
    first, second = (with_scratch(trace, scratch) for trace in traces)
    assert are_alike(first, second)
    return predict_aligned(first, second)


def measured(model: str, uses: tuple[MethodUse, ...], micro_batch: int, passes: int = 1) -> MemoryMeasurement:
    host_data = HostData()
    host_data.add_living(CPU)
    training = built(model, uses, micro_batch=micro_batch)
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
    uses = uses_of(model, policy)
    prediction = predicted(model, uses)
    real = measured(model, uses, 16)
    assert prediction.peak(16) == pytest.approx(real.peak_bytes, rel=TOLERANCE)
    phases = prediction.phase_peaks(16)
    assert phases["forward"] == pytest.approx(real.forward_peak_bytes, rel=2 * TOLERANCE)
    assert phases["backward"] == pytest.approx(real.backward_peak_bytes, rel=2 * TOLERANCE)


def test_what_lives_at_the_peak_is_what_a_real_step_has() -> None:
    prediction, real = predicted("convnet", ()), measured("convnet", (), 16)
    parts = prediction.breakdown(16)
    assert parts[Category.PARAMETERS] == real.breakdown.parameters
    assert parts[Category.OPTIMIZER_STATE] == real.breakdown.optimizer_state
    assert prediction.activations.at(16) == pytest.approx(real.breakdown.activations, rel=TOLERANCE)


def test_a_second_pass_keeps_the_gradients_of_the_first() -> None:
    prediction, real = predicted("convnet", (), passes=2), measured("convnet", (), 16, passes=2)
    assert prediction.peak(16) == pytest.approx(real.peak_bytes, rel=TOLERANCE)
    assert prediction.peak(16) > predicted("convnet", ()).peak(16)


def test_a_model_that_was_built_with_values_is_traced_as_one_built_without() -> None:
    def training(mode: FakeTensorMode) -> Training:
        return Training(faked_model(real_model, mode), build_optimizer=torch.optim.AdamW)

    build_model, make_batch = MODELS["gpt2"]
    real_model = build_model()
    names = {name for name, _ in real_model.named_parameters()}
    mode = FakeTensorMode()
    batch = faked(make_batch(4), mode)
    trace = trace_step(lambda: training(mode), batch, micro_batch=4, device=CPU, mode=mode)
    mode = FakeTensorMode()
    batch = faked(make_batch(4), mode)
    plain = trace_step(
        lambda: Training(build_model(), build_optimizer=torch.optim.AdamW), batch, micro_batch=4, device=CPU, mode=mode
    )
    assert names == {name for name, _ in real_model.named_parameters()}, "tied parameters stay tied"
    assert predict_aligned(trace, trace_at(8)).peak(4) == predict_aligned(plain, trace_at(8)).peak(4)


def trace_at(micro_batch: int):  # type: ignore[no-untyped-def]
    mode = FakeTensorMode()
    build_model, make_batch = MODELS["gpt2"]
    return trace_step(
        lambda: Training(build_model(), build_optimizer=torch.optim.AdamW),
        faked(make_batch(micro_batch), mode),
        micro_batch=micro_batch,
        device=CPU,
        mode=mode,
    )
