"""Two short steps, measured allocation by allocation, say what every other batch takes."""

from __future__ import annotations

import pytest
import torch

from advisor.measure.memory.cpu import CpuMemory
from advisor.measure.memory.storages import HostData
from advisor.measure.memory.timeline import MemoryTimeline, timeline_of
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.predict.trace.envelope import predict_between
from advisor.training.training import Phase
from tests.methods.tiny import MODELS, training_of

CPU = torch.device("cpu")

PHASES = [(0, Phase.FORWARD), (10, Phase.BACKWARD), (20, Phase.OPTIMIZER)]


def made_up(batch: int) -> MemoryTimeline:
    """Activations of 10 a sample on 100, a backward pass that takes 15 more, an optimizer step that takes 500."""
    events = [
        (1, 100 + 10 * batch),
        (11, 15 * batch),
        (12, -15 * batch),
        (13, -100 - 10 * batch),
        (21, 500),
        (22, -500),
    ]
    return timeline_of(1000, events, PHASES)


def test_the_peak_moves_from_phase_to_phase() -> None:
    memory = predict_between((2, made_up(2)), (4, made_up(4)))
    assert memory is not None
    assert [memory.peak(batch) for batch in (1, 16, 17, 100)] == [1500, 1500, 1525, 3600]
    assert memory.phase_peaks(100) == {"idle": 1000, "forward": 2100, "backward": 3600, "optimizer": 1500}
    assert memory.activations.at(7) == 170
    assert memory.traced_at == (2, 4)


def test_steps_that_differ_in_more_than_sizes_say_nothing() -> None:
    more = timeline_of(1000, [(1, 100), (2, 40), (11, 60), (12, -60), (13, -140), (21, 500), (22, -500)], PHASES)
    assert predict_between((2, made_up(2)), (4, more)) is None
    elsewhere = timeline_of(1000, [(1, 140), (2, 60), (12, -60), (13, -140), (21, 500), (22, -500)], PHASES)
    assert predict_between((2, made_up(2)), (4, elsewhere)) is None


@pytest.mark.parametrize("model", ["gpt2", "convnet"])
@pytest.mark.parametrize("settings", [(), (use("checkpoint", every=1),), (use("optimizer_in_backward"),)])
def test_real_steps_far_from_those_that_were_measured(model: str, settings: tuple[MethodSetting, ...]) -> None:
    host_data = HostData()
    host_data.add_living(CPU)
    training = training_of(model)
    apply_settings(training, settings)
    training.step(MODELS[model][1](2))
    meter = CpuMemory(CPU, 2**40, host_data)
    timelines = {}
    peaks = {}
    for batch in (2, 4, 24):
        peaks[batch] = meter.measured_step(training, MODELS[model][1](batch))[1].peak_bytes
        assert meter.timeline is not None
        timelines[batch] = meter.timeline
    training.close()
    memory = predict_between((2, timelines[2]), (4, timelines[4]))
    assert memory is not None
    assert memory.peak(4) == peaks[4]
    assert memory.peak(24) == pytest.approx(peaks[24], rel=0.005)


@pytest.mark.parametrize("coded", [use("fp8_activations", format="e4m3"), use("few_bit_activation", bits=4)])
def test_more_pieces_of_work_at_a_larger_batch_are_no_other_step(
    coded: MethodSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coding takes as much at once at any batch that fills a chunk, so that small batches predict a larger one."""
    monkeypatch.setattr("advisor.training.chunking._ON_CPU", 2**12)

    def stepped(micro_batch: int) -> tuple[int, MemoryTimeline]:
        training = training_of("gpt2", micro_batch=micro_batch, layers=1)
        apply_settings(training, [coded])
        meter = CpuMemory(CPU, 2**40, HostData())
        batch = MODELS["gpt2"][1](micro_batch)
        training.step(batch)
        meter.measured_step(training, batch)
        training.close()
        assert meter.timeline is not None
        return micro_batch, meter.timeline

    prediction = predict_between(stepped(2), stepped(3))
    assert prediction is not None
    _, large = stepped(8)
    assert prediction.peak(8) == pytest.approx(max(large.live), rel=0.005)
