"""Measure where the time of a step on several devices goes: computing, or communication that nothing hides."""

from __future__ import annotations

from advisor.measure.speed.profiled_steps import split_steps
from advisor.trial.outcome import Outcome
from advisor.trial.result import SplitResult
from advisor.trial.spec import SplitTrial
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.first_steps import first_steps

__all__ = ["split_step"]

_SECONDS = 0.5
_MOST_STEPS = 5
"""A profiler writes down every operator: a few steps are enough for shares, and many take long to read."""


def split_step(bench: Bench[SplitTrial]) -> SplitResult:
    """Run the trial; this rank's share.

    Raises:
        DeviceOutOfMemoryError: It does not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec, world = bench.spec, bench.world
    batches = bench.data.batches(spec.policy.global_batch)
    with bench.meter() as meter, bench.training(spec.policy) as training:
        alone = first_steps(bench, meter, training, batches)
        count = world.agreed(max(1, min(_MOST_STEPS, round(_SECONDS / alone))))

        def step(index: int) -> None:
            training.step(batches[index % len(batches)])
            bench.synchronize()

        bench.tell("profiling some steps")
        world.wait()
        return spec.ended(Outcome.OK, split=split_steps(training, step, count, bench.device))
