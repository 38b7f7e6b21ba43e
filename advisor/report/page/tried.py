"""Every policy that a study tried, with its numbers and its wrapper."""

from __future__ import annotations

import math
from collections.abc import Iterable

from advisor.decide.candidate import Candidate, Role
from advisor.decide.cost import cost_of
from advisor.decide.eligible import is_measured, why_not_eligible
from advisor.decide.guard import observed_class
from advisor.goal import GoalKind
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement, Sizing, StopReason
from advisor.predict.prediction import MemoryPrediction
from advisor.report.page.commands import Commands
from advisor.report.page.document import Memory, PagePolicy
from advisor.report.page.figure import Figure, Source
from advisor.report.page.finished import FinishedStudy
from advisor.report.page.wrapper_of import wrapper_of
from advisor.report.wording import candidate_words, comparison_words, methods_words, on_devices
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.trial.result import SizeResult
from advisor.trial.spec import TrialSpec
from advisor.workload.sizes import size_words

__all__ = ["Lines", "Tried", "figure_of_rate", "figure_of_seconds", "figure_of_speedup"]

_NORMAL_95 = 1.96
_WIDEST = 50.0
"""Log of a factor that says nothing any more."""


class Lines:
    """Lines of text, each once, and texts as their numbers: wrappers differ in a few lines only."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbered(self, text: str) -> tuple[int, ...]:
        """A text as the numbers of its lines; what ends its last line is left out."""
        return self.numbered_lines(text.removesuffix("\n").split("\n"))

    def numbered_lines(self, lines: Iterable[str]) -> tuple[int, ...]:
        """Lines as their numbers."""
        numbers = self._numbers
        return tuple(numbers.setdefault(line, len(numbers)) for line in lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines, by number."""
        return tuple(self._numbers)


class Tried:
    """The policies of a study under the IDs that the document knows them by.

    Attributes:
        commands: What is copied to measure again.
        entries: ID -> candidate: the ranking first, best first.
        combinations: ID -> the candidates that differ only in their batch.
        models: Combination's ID -> what its profiling runs predict, where they do.
        sizings: Combination's ID -> its profiling runs, their prediction, and their passes.
        profiled_by: Combination's ID -> the key of the trial that profiled it.
    """

    def __init__(self, study: FinishedStudy) -> None:
        self.study = study
        self.commands = Commands(study)
        found = study.answer.recommendation
        self._goal = study.answer.goal
        self.entries = {f"p{number}": one for number, one in enumerate((*found.ranking, *found.not_measured))}
        self._ids: dict[object, str] = {}
        self._combination_ids: dict[object, str] = {}
        self.combinations: dict[str, list[Candidate]] = {}
        for name, one in self.entries.items():
            self._ids.setdefault(_identity(one), name)
            group = self._combination_ids.setdefault(_group(one), f"c{len(self._combination_ids)}")
            self.combinations.setdefault(group, []).append(one)
        self.sizings: dict[str, tuple[Sizing, MemoryPrediction | None, int]] = {}
        self.profiled_by: dict[str, str] = {}
        for trial in study.trials:
            result, name = trial.result, self.combination_named(trial.spec)
            if not name or not isinstance(result, SizeResult):
                continue
            self.profiled_by[name] = result.key
            known = self.sizings.get(name)
            if result.sizing is not None and (known is None or len(known[0].points) < len(result.sizing.points)):
                self.sizings[name] = result.sizing, result.prediction, trial.spec.policy.accumulation_steps
        self.models = {
            name: MemoryModel.fit(sizing, prediction, passes=passes)
            for name, (sizing, prediction, passes) in self.sizings.items()
            if sizing.points
        }

    def id_of(self, candidate: Candidate | None) -> str:
        """The ID of a candidate's policy; empty if the answer does not have it."""
        return "" if candidate is None else self._ids.get(_identity(candidate), "")

    def combination_of(self, candidate: Candidate) -> str:
        """The ID of its combination."""
        return self._combination_ids[_group(candidate)]

    def combination_named(self, spec: TrialSpec) -> str:
        """The ID of a trial's combination; empty if no policy of the answer has it."""
        return self._combination_ids.get((Combination.of(spec.policy).label, _size(spec.model_size)), "")

    def policies(self, lines: Lines) -> Iterable[PagePolicy]:
        """All of them as the document has them."""
        ranked = len(self.study.answer.recommendation.ranking)
        for number, (name, one) in enumerate(self.entries.items(), 1):
            yield self._policy(name, one, number if number <= ranked else None, lines)

    def _policy(self, name: str, one: Candidate, rank: int | None, lines: Lines) -> PagePolicy:
        policy, measured, goal = one.policy, one.measurement, self._goal
        model = self.models.get(self.combination_of(one))
        peak, rate = one.predicted_peak_bytes, None
        if model is not None:
            peak = peak or model.predict(policy.micro_batch)
            seconds = model.seconds(policy.micro_batch, policy.accumulation_steps)
            rate = _predicted(policy.global_batch / seconds) if seconds > 0 else None
        if one.comparison is not None and measured is None:
            expected, error = one.comparison.expected_samples_per_second, one.comparison.expected_error
            factor = math.exp(min(_NORMAL_95 * error, _WIDEST))
            rate = Figure(value=expected, low=expected / factor, high=expected * factor, source=Source.PREDICTED)
        reason = one.reason if not is_measured(one) else why_not_eligible(one, goal) or ""
        cost = cost_of(one, goal).cost_usd if goal.kind is GoalKind.CHEAPEST and goal.price and measured else None
        joules = None if measured is None else measured.joules_per_step
        limit = goal.limit_on(policy.gpu_count)
        search, alone = self.commands.of_methods(one), self.commands.of_policy(one)
        return PagePolicy(
            id=name,
            combination=self.combination_of(one),
            name=" + ".join(candidate_words(one)),
            methods=tuple(methods_words(policy)) if policy.methods else (),
            micro_batch=policy.micro_batch,
            accumulation_steps=policy.accumulation_steps,
            gpu_count=policy.gpu_count,
            samples_per_step=policy.global_batch,
            devices=on_devices(policy).strip(),
            rank=rank,
            roles=self._roles(one),
            outcome=one.outcome.value,
            reason=reason,
            source=Source.MEASURED if measured else None if peak is None and rate is None else Source.PREDICTED,
            samples_per_second=None if measured is None else figure_of_rate(measured),
            step_seconds=None if measured is None else figure_of_seconds(measured),
            timed_steps=None if measured is None else measured.timed_steps,
            stopped="" if measured is None else measured.stop_reason.value,
            tokens_per_second=None if measured is None else measured.tokens_per_second,
            peak_bytes=None if measured is None else _measured(measured.memory.peak_bytes),
            memory=None if measured is None else _memory(measured),
            limit_bytes=None if limit == goal.memory_limit_bytes else limit,
            predicted_peak_bytes=None if peak is None else _predicted(peak),
            predicted_samples_per_second=rate,
            speedup=None if one.speedup is None else figure_of_speedup(one.speedup),
            comparison="" if one.comparison is None else comparison_words(one.comparison),
            cost_usd=None if cost is None else _measured(cost),
            joules_per_step=None if joules is None else _measured(joules),
            fidelity=one.fidelity.value,
            observed_fidelity=_observed(one),
            loss_drift=one.loss_drift if one.guard is None else one.guard.loss_drift,
            model_size=one.model_size,
            parameter_count=one.parameter_count,
            notes=one.notes,
            wrapper=lines.numbered(self.wrapper(one)),
            command=search.command,
            verify_command=alone.command,
            call=lines.numbered_lines(search.lines),
            verify_call=lines.numbered_lines(alone.lines),
        )

    def _roles(self, one: Candidate) -> tuple[str, ...]:
        found = self.study.answer.recommendation
        winner = ("winner",) if one == found.winner else ()
        return winner if one.role is Role.SEARCHED else (*winner, one.role.value)

    def wrapper(self, one: Candidate) -> str:
        """The text of its ``wrapper.py``."""
        answer = self.study.answer
        return wrapper_of(
            one,
            answer.recommendation.baseline,
            goal=answer.goal,
            workload=answer.workload,
            device=answer.hardware.title,
            versions=answer.versions,
            date=answer.date,
            options=answer.facts.workload_options,
            size_arguments=answer.facts.size_arguments,
            layout=answer.facts.batch_layout,
        )


def figure_of_rate(measured: Measurement) -> Figure:
    """Its throughput, with the interval of its step; one that was stopped early is of a few steps."""
    if measured.stop_reason is StopReason.OUTPACED:
        return Figure(value=measured.samples_per_second, source=Source.PROFILED)
    samples = measured.samples_per_second * measured.step_seconds
    return Figure(
        value=measured.samples_per_second,
        low=samples / measured.step_seconds_high if measured.step_seconds_high > 0 else None,
        high=samples / measured.step_seconds_low if measured.step_seconds_low > 0 else None,
        source=Source.MEASURED,
    )


def figure_of_seconds(measured: Measurement) -> Figure:
    """Its step."""
    return Figure(
        value=measured.step_seconds,
        low=measured.step_seconds_low,
        high=measured.step_seconds_high,
        source=Source.MEASURED,
    )


def figure_of_speedup(speedup: Speedup) -> Figure:
    """A ratio of two trainings that took turns."""
    return Figure(value=speedup.value, low=speedup.low, high=speedup.high, source=Source.MEASURED)


def _measured(value: float) -> Figure:
    return Figure(value=value, source=Source.MEASURED)


def _predicted(value: float) -> Figure:
    return Figure(value=value, source=Source.PREDICTED)


def _memory(measured: Measurement) -> Memory:
    memory, parts = measured.memory, measured.memory.breakdown
    return Memory(
        source=Source.MEASURED,
        parameters=parts.parameters,
        buffers=parts.buffers,
        gradients=parts.gradients,
        optimizer_state=parts.optimizer_state,
        activations=parts.activations,
        forward_peak=memory.forward_peak_bytes,
        backward_peak=memory.backward_peak_bytes,
        optimizer_peak=memory.optimizer_peak_bytes,
        workspace=memory.workspace_bytes,
    )


def _observed(one: Candidate) -> str:
    if one.guard is None:
        return ""
    observed = observed_class(one.fidelity, one.guard)
    return "broken" if observed is None else observed.value


def _identity(one: Candidate) -> object:
    return one.policy.key, _size(one.model_size)


def _group(one: Candidate) -> object:
    return Combination.of(one.policy).label, _size(one.model_size)


def _size(size: dict[str, int | float]) -> str:
    return size_words(size) if size else ""
