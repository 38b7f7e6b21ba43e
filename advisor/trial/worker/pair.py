"""Alternate the steps of two trainings in the same processes, also on several ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from advisor.measure.in_turn import TurnPlan, take_turns
from advisor.policy.policy import Policy
from advisor.training.process_setting import disputed
from advisor.training.training import Training
from advisor.trial.outcome import Outcome
from advisor.trial.result import PairResult
from advisor.trial.spec import PairTrial
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.first_steps import first_steps

__all__ = ["compare_pair"]

_TURN_SECONDS = 0.25
_MOST_STEPS = 200
"""In one turn, which takes many steps, or one long one."""

_ROUNDS = (4, 40)


def compare_pair(bench: Bench[PairTrial]) -> PairResult:
    """Run the trial; on several ranks, this rank's share.

    Weights and optimizer states of both stay in memory, activations are those of the one whose turn it is. All ranks
    make equally many steps, and decide by the clock of the first.

    Raises:
        DeviceOutOfMemoryError: Both do not fit (``torch.OutOfMemoryError`` on CUDA).
        DivergedError: A loss was not finite.
    """
    spec, world = bench.spec, bench.world
    assert spec.beside.gpu_count == spec.policy.gpu_count, "both on the same devices"
    with bench.meter() as meter, bench.training(spec.policy) as one, bench.training(spec.beside) as other:
        settings = disputed(2)
        if settings:
            bench.notes.append(f"not compared in turn: they disagree on {', '.join(settings)} of the whole process")
            return spec.ended(Outcome.OK)

        def turns_of(training: Training, policy: Policy, batches: list[Any]) -> Callable[[], float]:
            training.micro_batch = policy.micro_batch
            bench.tell(f"first steps at batch {policy.micro_batch}")
            alone = first_steps(bench, meter, training, batches)
            count = world.agreed(max(1, min(_MOST_STEPS, round(_TURN_SECONDS / alone))))

            def turn() -> float:
                begin = time.perf_counter()
                for index in range(count):
                    training.step(batches[index % len(batches)])
                bench.synchronize()
                return world.agreed((time.perf_counter() - begin) / count / policy.global_batch)

            return turn

        batches, other_batches = (bench.data.batches(policy.global_batch) for policy in (spec.policy, spec.beside))
        bench.data.reused.keep_too(batches)
        own, others = turns_of(one, spec.policy, batches), turns_of(other, spec.beside, other_batches)
        bench.tell("taking turns")
        plan = TurnPlan(
            min_rounds=_ROUNDS[0],
            max_rounds=_ROUNDS[1],
            target_spread=spec.target_spread,
            seconds=spec.measure_seconds,
        )
        return spec.ended(Outcome.OK, speedup=take_turns(own, others, plan, lambda: world.agreed(time.perf_counter())))
