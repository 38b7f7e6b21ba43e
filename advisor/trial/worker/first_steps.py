"""The first steps of a training, which make the optimizer's state and what methods settle."""

from __future__ import annotations

import functools
import time
from typing import Any

from advisor.measure.memory.meter import MemoryMeter
from advisor.training.training import Training
from advisor.trial.worker.bench import Bench, finite, until_updated

__all__ = ["first_steps"]


def first_steps(bench: Bench[Any], meter: MemoryMeter, training: Training, batches: list[Any]) -> float:
    """Make them, within the memory limit.

    Returns:
        Seconds of the last.

    Raises:
        DeviceOutOfMemoryError: It does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    for index in range(2 + training.settling_steps):
        batch, begin = batches[index % len(batches)], time.perf_counter()
        step = functools.partial(training.step, batch)
        with meter.guarding(batch):
            finite(float(until_updated(training, step, bench.world.agreed)), index)
        bench.synchronize()
    return time.perf_counter() - begin
