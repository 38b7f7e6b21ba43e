"""Run the trials that a search needs, and learn from their results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from advisor.goal import GoalKind
from advisor.hardware.hardware import DeviceKind
from advisor.measure.measurement import Sizing
from advisor.methods.compose import starts_slowly
from advisor.policy.policy import Policy
from advisor.predict.step_work import StepWork
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.setup.limits import CUDA_CONTEXT_BYTES
from advisor.session.trials.durations import remember_timing
from advisor.session.trials.expected import sample_seconds_at
from advisor.session.trials.fullest_device import fullest_bytes, settled_by_probe
from advisor.session.trials.known import Known, ran_not_even_once
from advisor.session.trials.micro_batches import largest_of_samples, profiled_passes
from advisor.session.trials.runs import TrialRuns
from advisor.session.trials.stalls import around_stalls, settings_around_stalls
from advisor.session.trials.turns import Turns
from advisor.trial.process.runner import Runner
from advisor.trial.result import (
    ConfirmResult,
    FidelityResult,
    PairResult,
    PredictResult,
    SizeResult,
    SplitResult,
    TimeResult,
)
from advisor.trial.spec import ConfirmTrial, FidelityTrial, PairTrial, PredictTrial, SizeTrial, SplitTrial, TimeTrial

__all__ = ["COMPARED_STEPS", "Trials"]

_REACH = 4
"""Profiling runs of a comparison go up to this many times its batch; leaders are timed at growing ones."""

COMPARED_STEPS = 30
"""Steps over which losses are compared with the reference run's: seven rounds of the distinct batches."""


class Trials:
    """The trials of one study at one size of the model: sizings, timings, comparisons, confirmations.

    Attributes:
        turns: Chooses what each trial alternates with.
    """

    def __init__(
        self,
        context: StudyContext,
        runner: Runner,
        *,
        model_size: Mapping[str, int | float] | None = None,
        most_samples: int | None = None,
    ) -> None:
        self._context = context
        self._runner = runner
        self._limits = context.budget.limits
        self._goal = context.goal
        self._model_size = dict(model_size or {})
        self.layout = context.facts.batch_layout  # how many samples a batch may have, among other things
        self.runs = TrialRuns(context, runner, self._model_size, most_samples)
        self._known = Known([one for one in context.ledger.candidates if one.model_size == self._model_size])
        self.turns = Turns(
            # Other workers of a shared study choose from timed candidates: they do not see comparisons made here.
            wanted=self._goal.kind is GoalKind.FASTER
            and context.space.gpu_counts == (1,)
            and context.request.storage is None,
            usable_bytes=context.usable_bytes,
            second_context_bytes=CUDA_CONTEXT_BYTES if context.hardware.kind is DeviceKind.CUDA else 0,
            # Settings of the user's own decide their threads themselves.
            around=() if context.request.baseline else settings_around_stalls(context.space, context.facts),
        )

    @property
    def most_samples(self) -> int | None:
        """The most samples that ``make_batch`` makes and the training takes, if they are known to be limited."""
        return self.runs.most_samples

    @property
    def first_batch(self) -> int:
        """The first micro-batch of every sizing; the same for all, so that their losses compare."""
        return self.runs.first_batch

    def at_size(self, model_size: Mapping[str, int | float]) -> Trials:
        """The same trials at a model size; at another than their own, they learn nothing from these."""
        own, most = model_size == self._model_size, self.most_samples
        return self if own else Trials(self._context, self._runner, model_size=model_size, most_samples=most)

    def reference(self, shares: int) -> Combination | None:
        """Plain training with as many shares of a batch, which losses are compared with."""
        return self._context.reference(shares)

    def size(
        self, combination: Combination, largest_batch: int | None, *, alone: bool = False
    ) -> tuple[MemoryModel | None, SizeResult]:
        """Model a combination's memory and time against the batch, reusing earlier runs.

        Args:
            combination: The methods and the number of devices.
            largest_batch: Micro-batches above this one are of no interest (a fixed global batch).
            alone: Whether its steps alternate with nothing, although profiling runs do here.

        Returns:
            The model, or ``None`` if not even the first batch worked; and the trial behind it.
        """
        if self.most_samples is not None:
            share = max(1, largest_of_samples(self.most_samples, combination, self._goal))
            largest_batch = share if largest_batch is None else min(largest_batch, share)
        batch = self.first_batch if largest_batch is None else min(self.first_batch, largest_batch)
        if self.turns.compare_at is not None and starts_slowly(combination.settings):
            # Code compiled for a second batch is not the code that will run, so use the comparison's batch alone. Its
            # losses do not compare with plain training's first batch; if it leads, the guard compares more steps.
            batch = largest_batch = self.turns.compare_at
        elif self.turns.compare_at is not None:
            reach = _REACH * self.turns.compare_at
            largest_batch = reach if largest_batch is None else min(largest_batch, reach)
        is_first = combination == Combination() and self.turns.baseline is None  # nothing is compared with these steps
        steady = around_stalls(combination, self.turns.around) if is_first else combination
        is_plain = combination == self.reference(combination.data_degree)
        result = self._size_from(batch, steady, largest_batch, alone=alone, for_all=is_plain)
        if batch > 1 and self.layout.takes_any and ran_not_even_once(result):  # losses of one compare with no others
            result = self._size_from(1, steady, 1, alone=True, for_all=is_plain)
        if result.sizing is None or not result.sizing.points:
            return None, result
        for one in (combination, steady) if steady != combination else (combination,):
            self._known.learn_sizing(one, result, passes=profiled_passes(one, self._goal))
        self._known.learn_turns(combination, self.model_of(self.turns.compared_with(combination)))
        return self.model_of(combination), result

    def _size_from(
        self, first_batch: int, combination: Combination, largest_batch: int | None, *, alone: bool, for_all: bool
    ) -> SizeResult:
        plain, slow_start = self._known.models.get(Combination().label), starts_slowly(combination.settings)
        known = self.model_of(self.turns.pacesetter), self.sizing_of(self.turns.pacesetter)
        beside = None if alone else self.turns.beside_profiling_runs(combination, first_batch, *known)
        expected = None if plain is None else plain.seconds(2 * first_batch)
        limit_seconds = self._limits.hard_limit_seconds(expected, slow_start=slow_start)
        if slow_start and self.turns.compare_at is not None:
            limit_seconds = min(limit_seconds, self._limits.set_up_limit_seconds)
        passes, settled = profiled_passes(combination, self._goal), self._settled(combination)
        return self.runs.sized(
            self.runs.spec(
                SizeTrial,
                combination.policy(first_batch, passes, settled=settled),
                measure_seconds=self._limits.sizing_seconds,
                hard_limit_seconds=limit_seconds,
                largest_batch=largest_batch,
                memory_limit_bytes=self._context.usable_bytes // self._goal.sharers(combination.gpu_count),
                limit_of_timed_bytes=self._goal.limit_on(combination.gpu_count),
                compare_at=None if beside is None else self.turns.compare_at,
                sample_seconds_beside=sample_seconds_at(known[0], self.turns.compare_at),
                **self._taking_turns(beside),
            ),
            for_all=for_all,
        )

    def model_of(self, combination: Combination) -> MemoryModel | None:
        """The memory model of a combination that was sized, with all it learned since."""
        model = self._known.models.get(combination.label)
        most = self.most_samples and largest_of_samples(self.most_samples, combination, self._goal)
        return model and msgspec.structs.replace(model, most_samples=most, layout=self.layout)

    def sizing_of(self, combination: Combination) -> Sizing | None:
        """The profiling runs of a combination, if it was sized."""
        return self._known.sizings.get(combination.label)

    def time(
        self,
        policy: Policy,
        *,
        outpaced_below: float | None,
        smaller: Policy | None = None,
        ladder: tuple[Policy, ...] = (),
        repeat: int = 0,
        measure_seconds: float | None = None,
        **asked: Any,
    ) -> TimeResult:
        """Measure full steps, and let the combination's memory model learn from it.

        Args:
            policy: The policy to run.
            outpaced_below: Samples per second below which the trial may stop early, or ``None``.
            smaller: The same methods at a smaller micro-batch, to time in the same process.
            ladder: The same methods at growing micro-batches, to time in the same process while throughput grows.
            repeat: Above 0 to measure a policy again instead of reading the stored result.
            measure_seconds: Soft limit for the stepping; by default what one trial may take.
            asked: Other fields of the trial.
        """
        model = self.model_of(Combination.of(policy))
        largest = ladder[-1] if ladder else policy
        expected = None if model is None else model.seconds(largest.micro_batch, largest.accumulation_steps)
        need = self._need_bytes(largest)
        leader = (not repeat and self.turns.leader_beside(largest, need)) or self.turns.steady_beside(largest, need)
        # A repetition is part of a confirmation, which may exceed the time limit.
        limit_of = self._limits.confirmation_limit_seconds if repeat else self._limits.hard_limit_seconds
        beside = self.turns.baseline_beside(largest, need) if leader is None else leader.policy
        result = self.runs.run(
            self.runs.spec(
                TimeTrial,
                policy,
                measure_seconds=measure_seconds,
                hard_limit_seconds=limit_of(expected, slow_start=starts_slowly(policy.methods)),
                outpaced_below_samples_per_second=outpaced_below,
                outpaced_below_speedup=self.turns.pace(outpaced_below, leader),
                smaller=smaller,
                ladder=ladder,
                repeat=repeat,
                **self._taking_turns(beside),
                **asked,
            )
        )
        self.turns.learn(result)
        result = self.turns.over_baseline(result, leader)
        remember_timing(self._context.budget.durations, policy, result)
        self._known.learn_timing(policy, result)
        return result

    def count_work(self, policy: Policy) -> StepWork | None:
        """Count the work of a policy's step from a trace, without running it; ``None`` if it cannot be counted."""
        return self._traced(policy, counts_work=True).work

    def fullest_bytes(self, combination: Combination) -> int | None:
        """What the smallest batch takes on the fullest device of a mesh, where a trace can answer that."""
        least, passes = self.layout.least_samples, profiled_passes(combination, self._goal)
        policy = combination.policy(least, passes, settled=self._settled(combination))
        limit, facts = self._goal.limit_on(combination.gpu_count), self._context.facts
        return fullest_bytes(policy, facts, limit, lambda policy, rank: self._traced(policy, rank=rank))

    def _traced(self, policy: Policy, **asked: Any) -> PredictResult:
        seconds, usable = self._limits.trace_limit_seconds, self._context.usable_bytes
        return self.runs.run(
            self.runs.spec(PredictTrial, policy, hard_limit_seconds=seconds, memory_limit_bytes=usable, **asked)
        )

    def _settled(self, combination: Combination) -> dict[str, str]:
        """What the probe has settled already, of the model that it saw."""
        return {} if self._model_size else settled_by_probe(combination, self._context.facts)

    def confirm(
        self, policy: Policy, wrapper_path: str, *, repeat: int, around_stalls: bool = True, **asked: Any
    ) -> ConfirmResult:
        """Run an emitted wrapper in a fresh process.

        Args:
            policy: The wrapper's.
            wrapper_path: Its file.
            repeat: Distinguishes repetitions.
            around_stalls: Whether it may take turns with the steady baseline, over which its speedup is then.
            asked: Other fields of the trial: what it takes turns with where the search took none.
        """
        model, need = self.model_of(Combination.of(policy)), self._need_bytes(policy)
        steady = self.turns.steady_beside(policy, need) if around_stalls else None
        beside = self.turns.baseline_beside(policy, need) if steady is None else steady.policy
        expected = None if model is None else model.seconds(policy.micro_batch, policy.accumulation_steps)
        slow = starts_slowly(policy.methods)
        result = self.runs.run(
            self.runs.spec(
                ConfirmTrial,
                policy,
                measure_seconds=self._limits.confirmation_step_seconds,
                hard_limit_seconds=self._limits.confirmation_limit_seconds(expected, slow_start=slow),
                wrapper_path=wrapper_path,
                wrapper_text=Path(wrapper_path).read_text(encoding="utf-8"),
                repeat=repeat,
                turn_seconds=self._limits.turn_seconds,
                **({"beside": beside} | asked),
            )
        )
        self.turns.learn(result)
        return result

    @property
    def thread_rates(self) -> dict[int, float]:
        """The probe's rates by number of threads; empty if unknown."""
        return {} if (rates := self._context.facts.device_rates) is None else rates.thread_rates

    def pair(self, policy: Policy, **asked: Any) -> PairResult:
        """Alternate the steps of two policies in the same processes."""
        return self.runs.run(self.runs.spec(PairTrial, policy, **asked))

    def split(self, policy: Policy, **asked: Any) -> SplitResult:
        """Profile some steps of a policy on several devices."""
        return self.runs.run(self.runs.spec(SplitTrial, policy, **asked))

    def _need_bytes(self, policy: Policy) -> int:
        model = self.model_of(Combination.of(policy))
        return self._goal.memory_limit_bytes if model is None else model.predict(policy.micro_batch)

    def fidelity(
        self,
        combination: Combination,
        micro_batch: int,
        *,
        exact: FidelityResult | None = None,
        other_chance: bool = False,
        passes: int = 1,
    ) -> FidelityResult:
        """Run some tens of small steps, once for each combination, batch and size.

        Args:
            combination: The methods and the number of devices.
            micro_batch: Samples per pass of each share of the data.
            exact: The reference run to compare gradient and state with; ``None`` to make the reference run.
            other_chance: Draw other random numbers, to see how far the reference run is from itself.
            passes: Micro-batches per step.
        """
        sizing = self.sizing_of(combination)
        spec = self.runs.spec(
            FidelityTrial,
            combination.policy(micro_batch, passes, settled=None if sizing is None else sizing.settled),
            measure_seconds=self._limits.comparison_step_seconds,
            hard_limit_seconds=self._limits.comparison_limit_seconds(slow_start=starts_slowly(combination.settings)),
            memory_limit_bytes=self._context.usable_bytes // self._goal.sharers(combination.gpu_count),
            fidelity_steps=COMPARED_STEPS,
            other_chance=other_chance,
            thread_rates=self.thread_rates,
        )
        if exact is None:
            own = str(self._runner.gradient_file(spec.key))
            return self.runs.run(msgspec.structs.replace(spec, write_gradient_to=own))
        assert exact.fidelity is not None, "there is something to compare with"
        gradient, state = str(self._runner.gradient_file(exact.key)), tuple(exact.fidelity.state)
        return self.runs.run(msgspec.structs.replace(spec, reference_gradient=gradient, watched_state=state))

    def drift(self, combination: Combination) -> float | None:
        """Loss drift of a combination from its reference, over the first steps of its sizing.

        The plainest one on several devices, where each rank draws its own dropout masks, has none to compare with, and
        neither has a pipeline, whose steps have more samples.
        """
        reference = self.reference(combination.data_degree)
        alone = combination == reference and combination.gpu_count > 1
        if reference is None or alone or combination.mesh.pipeline > 1:
            return None
        return self._known.drift(combination, reference)

    def _taking_turns(self, beside: Policy | None) -> dict[str, Any]:
        """Spec fields about the training that a trial alternates with."""
        alone = self.turns.wanted and beside is None
        return {"beside": beside, "turn_seconds": self._limits.turn_seconds, "needs_all_memory": alone}
