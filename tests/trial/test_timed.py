"""What a timed trial does beside the steps of a training."""

from __future__ import annotations

import weakref
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
from advisor.trial.worker.timed_steps import Limits, measured
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
    found = timed.climb(cast("Any", _Batches(asked)), cast("Any", None), cast("Any", None), first)
    assert len(found) == rungs


class _Batches:
    """As much of a workbench as a ladder touches itself."""

    def __init__(self, asked: Any) -> None:
        self.spec = asked
        self.data = self

    def batches(self, samples: int) -> list[int]:
        return [samples]
