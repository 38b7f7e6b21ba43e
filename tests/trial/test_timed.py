"""What a timed trial does beside the steps of a training."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from advisor.measure.in_turn import Speedup
from advisor.measure.speed.thread_rates import sharing_among
from advisor.policy.policy import Policy
from advisor.trial.result import Rung
from advisor.trial.worker import timed
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.failure import AllocatorRefusals
from advisor.trial.worker.timed_steps import Earlier, Limits, measured
from tests.decide.examples import measurement
from tests.session.test_budget import Clock
from tests.trial.specs import spec


def test_no_loss_stays_on_the_device() -> None:
    """Each takes 512 bytes of a GPU's memory: enough to need another segment."""
    bench = Bench(spec(measure_seconds=0.01), lambda _: None, AllocatorRefusals(torch.device("cpu")))
    losses: list[weakref.ref[torch.Tensor]] = []
    with bench.meter() as meter, bench.training(bench.spec.policy) as training:
        step = training.step

        def watched(batch: object) -> torch.Tensor:
            assert [loss for loss in losses if loss() is not None] == []
            loss = step(batch)
            losses.append(weakref.ref(loss))
            return loss

        training.step = watched  # type: ignore[method-assign]
        found = measured(bench, meter, training, bench.spec.policy, Limits(0.01)).measurement
    assert len(found.loss_trace) == len(losses) > 3


@pytest.mark.parametrize(
    ("rates", "threads"),
    [({}, 4), ({1: 50.0, 2: 70.0, 4: 100.0}, 4), ({1: 50.0, 2: 100.0, 4: 10.0}, 2)],
    ids=["unknown", "idle", "busy"],
)
def test_steps_that_are_not_timed_take_as_many_threads_as_nothing_slows_down(
    rates: dict[int, float], threads: int
) -> None:
    asked = spec(measure_seconds=0.01, thread_rates=rates, warmup_steps=0)
    with sharing_among(4):
        bench = Bench(asked, lambda _: None, AllocatorRefusals(torch.device("cpu")))
        taken: list[int] = []
        with bench.meter() as meter, bench.training(asked.policy) as training:
            step = training.step

            def watched(batch: object) -> torch.Tensor:
                taken.append(torch.get_num_threads())
                return step(batch)

            training.step = watched  # type: ignore[method-assign]
            measured(bench, meter, training, asked.policy, Limits(0.01))
    assert taken[:2] == [threads] * 2, "the first step, and the one whose memory is measured"
    assert set(taken[2:]) == {4}


@pytest.mark.parametrize(("seconds", "rungs"), [(1.0, 6), (4.0, 4), (9.0, 1)])
def test_a_ladder_ends_where_its_next_batch_may_take_twice_the_stepping_of_a_trial(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rungs: int
) -> None:
    """Other combinations need the time, too. Every batch gains, and nothing else would end it."""
    clock = Clock()

    def measured_as_well(bench: Any, meter: Any, training: Any, policy: Policy, *_: Any, **__: Any) -> Rung:
        clock.now += seconds
        gain = Speedup(value=1.5, low=1.4, high=1.6, rounds=2)
        return Rung(measurement=measurement(100.0, micro_batch=policy.micro_batch), speedup=None, gain=gain)

    monkeypatch.setattr(timed, "_measured_as_well", measured_as_well)
    monkeypatch.setattr(timed.time, "perf_counter", clock)
    ladder = tuple(Policy(micro_batch=4 * 2**power) for power in range(1, 7))
    asked = spec(measure_seconds=10.0, time_limit_seconds=200.0, ladder=ladder)
    first = Rung(measurement=measurement(100.0), speedup=None)
    nothing: Any = None
    found = timed.climb(cast("Any", _Batches(asked)), nothing, nothing, first, taken=seconds, began=clock.now)
    assert len(found) == rungs


@pytest.mark.parametrize(("end", "rungs"), [(None, 3), (100.0, 3), (45.0, 2), (20.0, 1), (16.0, 0), (0.0, 0)])
def test_a_ladder_leaves_the_time_that_its_end_is_kept_for(
    monkeypatch: pytest.MonkeyPatch, end: float | None, rungs: int
) -> None:
    """The trap: the second batch of a late leader took the time to compare its losses, so that it could not win.

    The first batch took 5 s, after 2 s of building; each further one takes twice as long as the one before.
    """
    clock = Clock()

    def measured_as_well(bench: Any, meter: Any, training: Any, policy: Policy, *_: Any, **__: Any) -> Rung:
        clock.now += 5.0 * policy.micro_batch / 4
        gain = Speedup(value=1.5, low=1.4, high=1.6, rounds=2)
        return Rung(measurement=measurement(100.0, micro_batch=policy.micro_batch), speedup=None, gain=gain)

    monkeypatch.setattr(timed, "_measured_as_well", measured_as_well)
    monkeypatch.setattr(timed.time, "perf_counter", clock)
    ladder = tuple(Policy(micro_batch=batch) for batch in (8, 16, 32))
    asked = spec(micro_batch=4, measure_seconds=100.0, time_limit_seconds=900.0, ladder=ladder, ladder_seconds=end)
    first = Rung(measurement=measurement(100.0, micro_batch=4), speedup=None)
    nothing: Any = None
    found = timed.climb(cast("Any", _Batches(asked)), nothing, nothing, first, taken=5.0, began=clock.now - 7.0)
    assert len(found) == rungs


CURVES = {
    "as expected": ({4: 100, 8: 140, 16: 170, 32: 180}, [16, 32]),
    "peaks at what was left out": ({4: 100, 8: 140, 16: 120, 32: 110}, [8, 16]),
    "no gain at all": ({4: 100, 8: 90, 16: 80, 32: 70}, [8, 16]),
    "a little less than expected": ({4: 100, 8: 155, 16: 142, 32: 140}, [8, 16]),
    "less than expected, but still growing": ({4: 100, 8: 110, 16: 125, 32: 150}, [8, 16, 32]),
    "the larger one fails": ({4: 100, 8: 140}, [8]),
}


@pytest.mark.parametrize(("rates", "measured_at"), CURVES.values(), ids=CURVES)
def test_a_batch_expected_to_be_between_its_neighbours_is_left_out_unless_the_larger_one_disappoints(
    monkeypatch: pytest.MonkeyPatch, rates: dict[int, float], measured_at: list[int]
) -> None:
    found = climbed(monkeypatch, rates, expected_gains=(1.4, 1.2, 1.1))
    assert [rung.measurement.micro_batch for rung in found] == measured_at
    assert max(rates, key=rates.__getitem__) in (4, *measured_at)


@pytest.mark.parametrize("gains", [(), (1.2, 1.2, 1.2), (1.4, 1.05, 1.0)], ids=["unknown", "unclear", "perhaps best"])
def test_no_batch_is_left_out_that_may_be_the_best(monkeypatch: pytest.MonkeyPatch, gains: tuple[float, ...]) -> None:
    found = climbed(monkeypatch, {4: 100, 8: 140, 16: 170, 32: 180}, expected_gains=gains)
    assert [(rung.measurement.micro_batch, rung.over) for rung in found] == [(8, 4), (16, 8), (32, 16)]


def test_the_batch_before_the_last_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last may fill the memory, and fails more often than others."""
    found = climbed(monkeypatch, {4: 100, 8: 140, 16: 190, 32: 250}, expected_gains=(1.2, 1.4, 1.3))
    assert [rung.measurement.micro_batch for rung in found] == [8, 16, 32]


def climbed(monkeypatch: pytest.MonkeyPatch, rates: dict[int, float], **asked: Any) -> tuple[Rung, ...]:
    """The rungs of a ladder from 4 to 32 samples, of which each batch has its rate."""

    def measured_as_well(*arguments: Any, before: Earlier) -> Rung | None:
        policy: Policy = arguments[3]
        if policy.micro_batch not in rates:
            return None
        value = rates[policy.micro_batch] / rates[before.policy.micro_batch]
        gain = Speedup(value=value, low=value / 1.01, high=value * 1.01, rounds=2)
        figures = measurement(rates[policy.micro_batch], micro_batch=policy.micro_batch)
        return Rung(measurement=figures, gain=gain, over=before.policy.micro_batch)

    monkeypatch.setattr(timed, "_measured_as_well", measured_as_well)
    ladder = tuple(Policy(micro_batch=batch) for batch in (8, 16, 32))
    trial = spec(micro_batch=4, measure_seconds=10.0, time_limit_seconds=200.0, ladder=ladder, **asked)
    first = Rung(measurement=measurement(rates[4], micro_batch=4))
    training = SimpleNamespace(model=torch.nn.Linear(1, 1))
    nothing: Any = None
    made: Any = training
    return timed.climb(cast("Any", _Batches(trial)), nothing, made, first, taken=0.0, began=0.0)


class _Batches:
    """As much of a workbench as a ladder touches itself."""

    def __init__(self, asked: Any) -> None:
        self.spec = asked
        self.data = self

    def batches(self, samples: int) -> list[int]:
        return [samples]
