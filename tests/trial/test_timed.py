"""What a timed trial does beside the steps of a training."""

from __future__ import annotations

import weakref

import torch

from advisor.trial.worker.bench import Bench
from advisor.trial.worker.failure import AllocatorRefusals
from advisor.trial.worker.timed_steps import Limits, measured
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
