"""Ask the runner for the trials that a search needs, and turn their results into candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor.decide.candidate import Candidate
from advisor.decide.drift import loss_drift
from advisor.goal import Goal
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.measure.measurement import Measurement, Sizing
from advisor.methods.catalogue import get_method
from advisor.methods.use import MethodUse
from advisor.policy.policy import Policy
from advisor.predict.work import StepWork
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.sizing.profiling_runs import memory_model_of
from advisor.search.space.space import Combination
from advisor.session.budget import TimeBudget
from advisor.session.setup.limits import CUDA_CONTEXT_BYTES
from advisor.session.trials.turns import Turns
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ConfirmResult, CountResult, FidelityResult, ProbeResult, Result, SizeResult, TimeResult
from advisor.trial.spec import (
    ConfirmTrial,
    CountTrial,
    FidelityTrial,
    PredictTrial,
    ProbeTrial,
    SizeTrial,
    TimeTrial,
    Trial,
)
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.workload import WorkloadSource

__all__ = ["Trials"]

_R = TypeVar("_R", bound=Result)
_S = TypeVar("_S", bound=Trial[Any])

_REACH = 4
"""Short runs that are compared go up to so many times the batch of the comparison."""

_COMPARED_STEPS = 30
"""Steps over which losses are held against the exact run's: seven rounds of the distinct batches."""


class Trials:
    """The trials of one study: probe, sizings, timings, confirmations.

    Args:
        runner: Runs specs in worker processes, or answers from the study folder.
        source: The workload.
        hardware: The device.
        goal: Its limit holds for every timed trial, on each of its devices.
        usable_bytes: The limit of the probe and of short runs: what is free on the device.
        budget: The session's clock.
        seed: Seed of models and batches.
        first_batch: The first micro-batch of every sizing; the same for all, so that their losses compare.
        reference: The plainest combination on a number of devices: what losses there are compared with.
        earlier: Candidates of earlier runs of the same study, from which the memory models learn again.
        model_size: The size that every trial builds; see :meth:`at_size`.
        layout: Where batches have their samples, if that is known.

    Attributes:
        most_samples: The most that ``make_batch`` makes, where it was seen to make fewer than it was asked for.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        source: WorkloadSource,
        hardware: Hardware,
        goal: Goal,
        usable_bytes: int,
        budget: TimeBudget,
        seed: int,
        first_batch: int,
        reference: Callable[[int], Combination | None] = lambda gpu_count: Combination(gpu_count=gpu_count),
        earlier: Sequence[Candidate] = (),
        model_size: Mapping[str, int | float] | None = None,
        layout: BatchLayout | None = None,
    ) -> None:
        self._runner = runner
        self._source = source
        self._hardware = hardware
        self._budget = budget
        self._seed = seed
        self.first_batch = first_batch
        self._earlier = tuple(earlier)
        self.reference = reference
        self._model_size = dict(model_size or {})
        self._layout = layout
        self.most_samples = None if layout is None else layout.most_samples
        self._usable_bytes = usable_bytes
        self._goal = goal
        self._sizings: dict[str, Sizing] = {}
        self._models: dict[str, MemoryModel] = {}
        self.turns = Turns(
            usable_bytes=usable_bytes,
            second_context_bytes=CUDA_CONTEXT_BYTES if hardware.kind is DeviceKind.CUDA else 0,
        )
        """Who takes turns with whom."""

    def at_size(self, model_size: Mapping[str, int | float]) -> Trials:
        """The same trials at another size of the model; what was learned of one size holds for that size alone."""
        layout = self._layout
        if layout is not None:
            layout = msgspec.structs.replace(layout, most_samples=self.most_samples)
        return Trials(
            runner=self._runner,
            source=self._source,
            hardware=self._hardware,
            goal=self._goal,
            usable_bytes=self._usable_bytes,
            budget=self._budget,
            seed=self._seed,
            first_batch=self.first_batch,
            reference=self.reference,
            earlier=[candidate for candidate in self._earlier if candidate.model_size == dict(model_size)],
            model_size=model_size,
            layout=layout,
        )

    @property
    def spent(self) -> Mapping[type[Trial[Any]], Sequence[float]]:
        """Kind of trial -> the seconds of each that was run."""
        return self._runner.spent

    def count(self) -> CountResult:
        """Count the parameters of every size."""
        return self._run(
            self._spec(
                CountTrial,
                Policy(micro_batch=self.first_batch),
                measure_seconds=self._budget.sizing_seconds,
                hard_limit_seconds=self._budget.probe_limit_seconds,
                memory_limit_bytes=self._usable_bytes,
            )
        )

    def probe(self, libraries: tuple[str, ...]) -> ProbeResult:
        """Build the plain model, make one step, learn the facts.

        All that is free is offered: whether plain training fits below the limit is for the search to find out, and
        the facts are needed all the same.

        Args:
            libraries: Optional libraries that the search's methods need.
        """
        spec = self._spec(
            ProbeTrial,
            Policy(micro_batch=self.first_batch),
            measure_seconds=self._budget.sizing_seconds,
            hard_limit_seconds=self._budget.probe_limit_seconds,
            memory_limit_bytes=self._usable_bytes,
            libraries=libraries,
        )
        result = self._run(spec)
        self._budget.learn_build_seconds(result.wall_seconds)
        if result.facts is not None:
            layout = result.facts.batch_layout
            self._layout = layout if layout.dims else None  # a probe of an older version found none
            self.most_samples = layout.most_samples
        return result

    def _run(self, spec: Trial[_R]) -> _R:
        result = self._runner.run(spec)
        if result.most_samples is not None:
            most = result.most_samples
            self.most_samples = most if self.most_samples is None else min(most, self.most_samples)
        return result

    def limit_on(self, gpu_count: int) -> int:
        """The memory limit of each device when so many train together."""
        return self._goal.limit_on(gpu_count)

    def size(
        self, combination: Combination, largest_batch: int | None, *, alone: bool = False
    ) -> tuple[MemoryModel | None, SizeResult]:
        """Memory and time against the batch, for one combination; from memory if it was done.

        Args:
            combination: The methods and the number of devices.
            largest_batch: Micro-batches above this one are of no interest (a fixed global batch).
            alone: Whether its steps take turns with nothing, although short runs do here.

        Returns:
            The model, or ``None`` when not even the first batch worked; and the trial behind it.
        """
        if self.most_samples is not None:
            share = max(1, self.most_samples // combination.gpu_count)
            largest_batch = share if largest_batch is None else min(largest_batch, share)
        first_batch = self.first_batch if largest_batch is None else min(self.first_batch, largest_batch)
        if self.turns.compare_at is not None and _starts_slowly(combination.uses):
            # Code for a second batch is not the code that will be run: one batch, that of the comparison. Its losses
            # are not those of plain training's first batch, and are compared over more steps if it leads.
            first_batch = largest_batch = self.turns.compare_at
        elif self.turns.compare_at is not None:
            # What may lead is timed at growing batches, each with its memory: short runs far above the first of them
            # would only take the time of others.
            reach = _REACH * self.turns.compare_at
            largest_batch = reach if largest_batch is None else min(largest_batch, reach)
        result = self._size_from(first_batch, combination, largest_batch, alone=alone)
        if first_batch > 1 and _not_even_once(result):
            # Two samples do not fit; one may. Its losses do not compare with those of other combinations.
            result = self._size_from(1, combination, 1, alone=True)
        if result.sizing is None or not result.sizing.points:
            return None, result
        self._sizings[combination.label] = result.sizing
        model = memory_model_of(result.sizing, result.prediction)
        for candidate in self._earlier:
            if Combination.of(candidate.policy) == combination:
                model = _learned(model, candidate.policy, candidate.outcome, candidate.measurement)
        self._models[combination.label] = model
        return self.model_of(combination), result

    def _size_from(
        self, first_batch: int, combination: Combination, largest_batch: int | None, *, alone: bool = False
    ) -> SizeResult:
        plain = self._models.get(Combination().label)
        pacesetter = self.turns.pacesetter
        beside = None
        if not alone:
            beside = self.turns.beside_short_runs(
                combination, first_batch, self.model_of(pacesetter), self.sizing_of(pacesetter)
            )
        slow_start = _starts_slowly(combination.uses)
        limit_seconds = self._budget.hard_limit_seconds(
            None if plain is None else plain.seconds(2 * first_batch), slow_start=slow_start
        )
        if slow_start and self.turns.compare_at is not None:
            limit_seconds = min(limit_seconds, self._budget.set_up_limit_seconds)
        return self._run(
            self._spec(
                SizeTrial,
                Policy(methods=combination.uses, micro_batch=first_batch, gpu_count=combination.gpu_count),
                measure_seconds=self._budget.sizing_seconds,
                hard_limit_seconds=limit_seconds,
                largest_batch=largest_batch,
                memory_limit_bytes=self._usable_bytes // self._goal.sharers(combination.gpu_count),
                limit_of_timed_bytes=self.limit_on(combination.gpu_count),
                beside=beside,
                compare_at=None if beside is None else self.turns.compare_at,
                turn_seconds=self._budget.turn_seconds,
                needs_all_memory=self.turns.wanted and beside is None,
            )
        )

    def model_of(self, combination: Combination) -> MemoryModel | None:
        """The memory model of a combination that was sized, with all it learned since."""
        model = self._models.get(combination.label)
        if model is None or self.most_samples is None:
            return model
        return msgspec.structs.replace(model, most_samples=self.most_samples // combination.gpu_count)

    def sizing_of(self, combination: Combination) -> Sizing | None:
        """The short runs of a combination, if it was sized."""
        return self._sizings.get(combination.label)

    def time(
        self,
        policy: Policy,
        *,
        outpaced_below: float | None,
        smaller: Policy | None = None,
        ladder: tuple[Policy, ...] = (),
        repeat: int = 0,
        measure_seconds: float | None = None,
    ) -> TimeResult:
        """Measure full steps, and let the combination's memory model learn from it.

        Args:
            policy: What to run.
            outpaced_below: Samples per second below which the trial may stop early, or ``None``.
            smaller: The same methods at a smaller micro-batch, to time in the same process.
            ladder: The same methods at growing micro-batches, to time in the same process while throughput grows.
            repeat: Above 0 to measure a policy once more instead of reading the first result back.
            measure_seconds: Soft limit for the stepping; by default what one trial may take.
        """
        model = self.model_of(Combination.of(policy))
        largest = ladder[-1] if ladder else policy
        expected = None if model is None else model.seconds(largest.micro_batch, largest.accumulation_steps)
        need = self._need_bytes(largest)
        leader = None if repeat else self.turns.leader_beside(largest, need)
        beside = self.turns.baseline_beside(largest, need) if leader is None else leader.policy
        # A repetition belongs to a confirmation, which may outlast the time limit.
        limit_seconds = self._budget.confirmation_limit_seconds if repeat else self._budget.hard_limit_seconds
        result = self._run(
            self._spec(
                TimeTrial,
                policy,
                measure_seconds=self._budget.measure_seconds if measure_seconds is None else measure_seconds,
                hard_limit_seconds=limit_seconds(expected, slow_start=_starts_slowly(policy.methods)),
                outpaced_below_samples_per_second=outpaced_below,
                outpaced_below_speedup=self.turns.pace(outpaced_below, leader),
                smaller=smaller,
                ladder=ladder,
                repeat=repeat,
                beside=beside,
                turn_seconds=self._budget.turn_seconds,
                needs_all_memory=self.turns.wanted and beside is None,
            )
        )
        self.turns.learn(result)
        result = self.turns.over_baseline(result, leader)
        if result.outcome is Outcome.OK:
            self._budget.learn_timing_seconds(result.wall_seconds / (1 + len(result.ladder)))
        if model is not None:
            model = _learned(model, policy, result.outcome, result.measurement)
            if result.smaller is not None:
                # Its memory alone: what a line of time says of large batches goes through the larger one.
                model = model.calibrated(result.smaller.micro_batch, result.smaller.memory.peak_bytes)
            for rung in result.ladder:
                one = rung.measurement
                model = model.calibrated(one.micro_batch, one.memory.peak_bytes)
                model = model.timed(one.micro_batch, one.accumulation_steps, one.step_seconds)
            self._models[Combination.of(policy).label] = model
        return result

    def count_work(self, policy: Policy) -> StepWork | None:
        """The work of a policy's step, from a trace that runs nothing; ``None`` where it cannot be counted."""
        spec = self._spec(
            PredictTrial,
            policy,
            measure_seconds=self._budget.measure_seconds,
            hard_limit_seconds=self._budget.trace_limit_seconds,
            memory_limit_bytes=self._usable_bytes,
            counts_work=True,
        )
        return self._run(spec).work

    def confirm(self, policy: Policy, wrapper_path: str, *, repeat: int) -> ConfirmResult:
        """Run an emitted wrapper in a fresh process.

        Args:
            policy: The policy that the wrapper applies.
            wrapper_path: The file.
            repeat: Tells this confirmation from earlier ones of the same policy.
        """
        model = self.model_of(Combination.of(policy))
        expected = None if model is None else model.seconds(policy.micro_batch, policy.accumulation_steps)
        result = self._run(
            self._spec(
                ConfirmTrial,
                policy,
                measure_seconds=self._budget.measure_seconds,
                hard_limit_seconds=self._budget.confirmation_limit_seconds(
                    expected, slow_start=_starts_slowly(policy.methods)
                ),
                wrapper_path=wrapper_path,
                wrapper_text=Path(wrapper_path).read_text(encoding="utf-8"),
                repeat=repeat,
                beside=self.turns.baseline_beside(policy, self._need_bytes(policy)),
                turn_seconds=self._budget.turn_seconds,
            )
        )
        self.turns.learn(result)
        return result

    def _need_bytes(self, policy: Policy) -> int:
        """What a policy may take."""
        model = self.model_of(Combination.of(policy))
        return self._goal.memory_limit_bytes if model is None else model.predict(policy.micro_batch)

    def fidelity(
        self,
        combination: Combination,
        micro_batch: int,
        *,
        exact: FidelityResult | None = None,
        other_chance: bool = False,
    ) -> FidelityResult:
        """Some tens of small steps; once for each combination, batch and size.

        Args:
            combination: The methods and the number of devices.
            micro_batch: Samples per step of each device.
            exact: The exact run, with whose gradient and state this run's are compared; ``None`` for that run itself.
            other_chance: Draw other random numbers: how far the exact run is from itself.
        """
        sizing = self.sizing_of(combination)
        spec = self._spec(
            FidelityTrial,
            Policy(
                methods=combination.uses,
                micro_batch=micro_batch,
                gpu_count=combination.gpu_count,
                settled={} if sizing is None else sizing.settled,
            ),
            measure_seconds=self._budget.comparison_step_seconds,
            hard_limit_seconds=self._budget.comparison_limit_seconds(slow_start=_starts_slowly(combination.uses)),
            memory_limit_bytes=self._usable_bytes // self._goal.sharers(combination.gpu_count),
            fidelity_steps=_COMPARED_STEPS,
            other_chance=other_chance,
        )
        if exact is None:
            return self._run(msgspec.structs.replace(spec, write_gradient_to=str(self._runner.gradient_file(spec.key))))
        assert exact.fidelity is not None, "there is something to compare with"
        gradient, state = str(self._runner.gradient_file(exact.key)), tuple(exact.fidelity.state)
        return self._run(msgspec.structs.replace(spec, reference_gradient=gradient, watched_state=state))

    def drift(self, combination: Combination) -> float | None:
        """Loss drift of a combination over the first steps of its sizing, from the plainest on as many devices.

        On several devices each rank draws its own dropout masks, so that losses there do not compare with those of one
        device; the plainest combination there, which only sums gradients, has none to compare with.
        """
        reference = self.reference(combination.gpu_count)
        if reference is None or (combination == reference and combination.gpu_count > 1):
            return None
        plain, own = self._sizings.get(reference.label), self._sizings.get(combination.label)
        if plain is None or own is None:
            return None
        if plain.points[0].micro_batch != own.points[0].micro_batch:
            return None
        return loss_drift(own.loss_trace, plain.loss_trace)

    def _spec(
        self,
        kind: type[_S],
        policy: Policy,
        *,
        measure_seconds: float,
        hard_limit_seconds: float,
        memory_limit_bytes: int | None = None,
        **asked: Any,
    ) -> _S:
        """A trial of this study; ``asked`` are the fields that its kind alone has."""
        return kind(
            workload=self._source,
            policy=policy,
            model_size=self._model_size,
            device=self._hardware.device,
            memory_limit_bytes=self.limit_on(policy.gpu_count) if memory_limit_bytes is None else memory_limit_bytes,
            seed=self._seed,
            layout=self._layout,
            measure_seconds=measure_seconds,
            time_limit_seconds=hard_limit_seconds,
            **asked,
        )


def _starts_slowly(uses: Sequence[MethodUse]) -> bool:
    return any(get_method(use.name).slow_start for use in uses)


def _learned(model: MemoryModel, policy: Policy, outcome: Outcome, measurement: Measurement | None) -> MemoryModel:
    """A memory model after one timed trial."""
    if measurement is not None:
        model = model.calibrated(policy.micro_batch, measurement.memory.peak_bytes)
        return model.timed(policy.micro_batch, policy.accumulation_steps, measurement.step_seconds)
    if outcome is Outcome.OUT_OF_MEMORY:
        return model.after_out_of_memory(policy.micro_batch)
    return model


def _not_even_once(result: SizeResult) -> bool:
    return result.outcome is Outcome.OUT_OF_MEMORY or (
        result.sizing is not None and not result.sizing.points and result.sizing.out_of_memory_at is not None
    )
