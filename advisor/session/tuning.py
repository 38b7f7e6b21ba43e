"""One tuning in an open study folder: probe, search, choose, confirm, write."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from advisor.decide.answer import Answer, store_answer
from advisor.decide.candidate import Recommendation
from advisor.decide.eligible import is_measured
from advisor.decide.score import directions
from advisor.goal import Goal, GoalKind
from advisor.hardware.mesh import MeshAxis
from advisor.report.progress import Progress
from advisor.search.propose.standing import Standing
from advisor.search.space.space import ResolvedSpace
from advisor.search.study.sampler import Proposer
from advisor.session.answer.conclude import Conclusion
from advisor.session.answer.confirm import confirm, not_run
from advisor.session.answer.emit import digests
from advisor.session.climb import SizeSearch
from advisor.session.compare_leaders import compare_leaders
from advisor.session.compare_neighbours import Neighbours
from advisor.session.context import StudyContext
from advisor.session.ledger import Ledger
from advisor.session.loop import SearchLoop
from advisor.session.preparation import Preparation
from advisor.session.setup.fit import fit_to_workload
from advisor.session.setup.own_settings import fit_to_own_settings, libraries_of
from advisor.session.setup.same_model import identity_in, keep_identity, model_of
from advisor.session.setup.wait_idle import wait_as_asked
from advisor.session.trials.compare import ComparingEvaluator
from advisor.session.trials.durations import recall_timings
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.guard import Guard
from advisor.session.trials.pairs import compares_pairs
from advisor.session.trials.probe import count_parameters, probe
from advisor.session.trials.sized_trials import SizedTrials
from advisor.session.trials.trials import Trials
from advisor.text.units import format_count
from advisor.trial.folder import StudyFolder
from advisor.trial.process.runner import Runner
from advisor.trial.spec import (
    ConfirmTrial,
    CountTrial,
    FidelityTrial,
    PairTrial,
    PredictTrial,
    ProbeTrial,
    SizeTrial,
    SplitTrial,
    TimeTrial,
    Trial,
)

__all__ = ["Tuning"]

_NAMES: dict[type[Trial[Any]], str] = {
    ProbeTrial: "loading the libraries, the probe",
    CountTrial: "counting parameters",
    SizeTrial: "profiling runs and comparisons",
    TimeTrial: "timing",
    PairTrial: "comparing leaders",
    FidelityTrial: "comparing losses",
    ConfirmTrial: "confirming",
    PredictTrial: "tracing where time goes",
    SplitTrial: "profiling communication",
}
"""What a run is busy with; the rest is momadvise's own: choosing, writing, and the start."""

_COMPARED = (
    "the leaders also took turns in one group of processes: their speeds are what the search's model expects from this "
    "and everything else that was measured"
)


@dataclass
class Tuning:
    """The steps of one tuning."""

    preparation: Preparation
    folder: StudyFolder
    goal: Goal
    progress: Progress
    notes: list[str]
    searched: Answer | None
    """An answer of this study whose search is enough: only the pick is made and confirmed again."""
    standings: dict[str, Standing] = field(default_factory=dict)

    def run(self) -> Answer:
        """Probe, search, choose, confirm, write."""
        preparation, request = self.preparation, self.preparation.request
        hardware, budget = preparation.hardware, preparation.budget
        self.progress.begin(
            workload=request.source.name,
            device=hardware.title,
            goal=self.goal.kind.value,
            time_limit_seconds=budget.limit_seconds,
            trials=request.trials,
        )
        for note in self.notes:
            self.progress.note(note)
        if self.searched is None:
            wait = request.wait_idle_seconds
            for note in wait_as_asked(wait, hardware, self.goal, budget, self.progress):
                self._say(note)
        ledger = Ledger(self.folder, self.goal.kind)
        usable = max(preparation.memory.usable_bytes, self.goal.memory_limit_bytes)
        with Runner(self.folder.path, nodes=request.nodes) as runner:
            self.progress.stage("the model's first plain step")
            space = preparation.space
            degrees = _divisors(preparation.gpu_counts) if space.divides(MeshAxis.TENSOR) else ()
            libraries = libraries_of(space, request.baseline)
            facts, probed = probe(request, hardware, usable, libraries, degrees, budget=budget, runner=runner)
            keep_identity(self.folder, probed, request.source)
            for note in probed.notes:
                self._say(note)
            space, goal = fit_to_own_settings(request, space, self.goal, facts, hardware, self._say)
            goal, resolved = fit_to_workload(request, space, goal, facts, hardware, self._say)
            context = StudyContext(
                request=request,
                folder=self.folder,
                hardware=hardware,
                usable_bytes=usable,
                goal=goal,
                facts=facts,
                space=resolved,
                ledger=ledger,
                budget=budget,
                progress=self.progress,
            )
            return self._answer(context, runner)

    def _say(self, note: str) -> None:
        self.notes.append(note)
        self.progress.note(note)

    def _answer(self, context: StudyContext, runner: Runner) -> Answer:
        trials = Trials(context, runner, model_size=context.request.model_size)
        recall_timings(context, self.folder)
        guard = Guard(context, trials)
        interrupted = exhausted = False
        try:
            stopped_because, exhausted = self._search(context, trials, guard, runner)
        except KeyboardInterrupt:
            if not any(is_measured(candidate) for candidate in context.ledger.candidates):
                raise
            interrupted = True
            stopped_because = "it was interrupted"
            self.progress.note("interrupted: the answer comes from what was measured so far")
        conclusion = self._conclusion(context, stopped_because)
        recommendation, interrupted = self._concluded(context, conclusion, trials, guard, interrupted)
        request, searched = context.request, self.searched
        answer = Answer(
            recommendation=recommendation,
            workload=request.source.name,
            goal=context.goal,
            folder=str(self.folder.path),
            hardware=context.hardware,
            facts=context.facts,
            versions=self.preparation.marker.versions,
            date=conclusion.date,
            trials=len(recommendation.ranking),
            trial_budget=request.trials if searched is None else searched.trial_budget,
            time_budget_seconds=(context.budget.limit_seconds if searched is None else searched.time_budget_seconds),
            complete=not interrupted,
            exhausted=exhausted,
            notes=tuple(self.notes),
            digests=digests(conclusion, recommendation),
            timings=self._timings(runner),
        )
        store_answer(answer, self.folder)
        return answer

    def _timings(self, runner: Runner) -> dict[str, float]:
        """What the run was busy with -> seconds."""
        timings = {
            f"{_NAMES[kind]} ({format_count(len(seconds), 'trial')})": sum(seconds)
            for kind, seconds in runner.spent.items()
        }
        own = self.preparation.budget.elapsed_seconds - sum(timings.values())
        return {**timings, "momadvise itself": max(0.0, own)}

    def _search(self, context: StudyContext, trials: Trials, guard: Guard, runner: Runner) -> tuple[str, bool]:
        """Search, unless an earlier search is enough; return why it ended, and whether nothing is left to try."""
        if self.searched is not None:
            # Notes about the measurements still hold.
            self.notes.extend(note for note in self.searched.notes if note not in self.notes)
            note = "nothing was searched again: the pick alone, from what was measured before, is new"
            if note not in self.notes:
                self._say(note)
            return self.searched.recommendation.stopped_because, self.searched.exhausted
        if context.goal.kind is GoalKind.BIGGER:
            return self._search_over_sizes(context, trials, guard, runner)
        kind = ComparingEvaluator if trials.turns.wanted else Evaluator
        evaluator = kind(context, trials, times_half=len(context.space.batch_fractions) == 1)
        space = context.space
        if trials.turns.wanted:  # batches are the affair of comparisons and of a leader's ladder
            space = msgspec.structs.replace(space, batch_fractions=(1.0,))
        with contextlib.closing(self._proposer(context, space)) as proposer:
            compared: dict[str, Standing] = {}
            loop = SearchLoop(context, proposer, evaluator, guard, trials.model_of)
            neighbours = Neighbours(context, trials, proposer)
            if compares_pairs(context):
                loop.after_trial = neighbours.compare
            try:
                reason = loop.run()
                compared = compare_leaders(context, trials, proposer)
                self.notes += [_COMPARED] if compared else []
                return reason, proposer.untried == 0
            finally:
                self.notes += [
                    f"{first} and {second} failed in each of {count} combinations that had both, while each went well "
                    "without the other: they do not go together here"
                    for (first, second), count in proposer.failing_pairs.items()
                ]
                self.notes += evaluator.notes
                self.notes += neighbours.notes
                self.standings = proposer.standings() | compared

    def _search_over_sizes(
        self, context: StudyContext, trials: Trials, guard: Guard, runner: Runner
    ) -> tuple[str, bool]:
        """Find the largest size for each combination; the same."""
        context.progress.stage("counting the parameters of every size")
        counts = count_parameters(
            context.request, context.hardware, context.usable_bytes, budget=context.budget, runner=runner
        )
        # A combination is proposed once: which batches it is tried at is the climb's affair.
        space = msgspec.structs.replace(context.space, batch_fractions=(1.0,))
        sized = SizedTrials(context, trials, guard, counts)
        with contextlib.closing(self._proposer(context, space)) as proposer:
            try:
                return SizeSearch(context, proposer, sized).run(), proposer.untried == 0
            finally:
                self.notes += sized.notes

    def _proposer(self, context: StudyContext, space: ResolvedSpace) -> Proposer:
        request = context.request
        return Proposer(
            space,
            storage=context.folder.database if request.storage is None else request.storage,
            # What a folder holds is checked by its marker; in a shared storage the name tells studies apart.
            study_name="momadvise" if request.storage is None else self._shared_name(),
            maximize=directions(request.goal),
            seed=request.seed,
            sampler=request.sampler,
        )

    def _shared_name(self) -> str:
        """The study's name in a shared storage, which does not depend on the paths a worker reads the model from."""
        model, marker = model_of(self.folder), self.preparation.marker
        return f"{self.preparation.request.source.name}-{marker.fingerprint}" + (f"-{model[:8]}" if model else "")

    def _conclusion(self, context: StudyContext, stopped_because: str) -> Conclusion:
        facts = context.facts
        tried = {(one.policy.combination_key, one.policy.gpu_count) for one in context.ledger.candidates}
        count = context.space.counted()
        return Conclusion(
            goal=context.goal,
            refused_settings=context.space.refused,
            untried=msgspec.structs.replace(count, number=max(0 if count.exact else 1, count.number - len(tried))),
            stopped_because=stopped_because,
            folder=self.folder,
            workload=context.request.source.name,
            hardware=context.hardware,
            fingerprints=self.preparation.marker.fingerprints_with(identity_in(self.folder)),
            date=datetime.date.today().isoformat(),
            workload_options=facts.workload_options,
            size_arguments=facts.size_arguments,
            layout=facts.batch_layout,
            standings=self.standings,
        )

    def _concluded(
        self, context: StudyContext, conclusion: Conclusion, trials: Trials, guard: Guard, interrupted: bool
    ) -> tuple[Recommendation, bool]:
        """Choose and confirm; return the answer and whether the user interrupted.

        After an interruption the files are written without a confirming run.
        """
        if not interrupted:
            try:
                return confirm(context, conclusion, trials, guard, say=self._say, repeat=self.searched is None)
            except KeyboardInterrupt:
                pass
        return not_run(context, conclusion, guard, self._say), True


def _divisors(counts: Sequence[int]) -> tuple[int, ...]:
    """Every number above 1 that divides one of these."""
    found = {degree for count in counts for degree in range(2, count + 1) if count % degree == 0}
    return tuple(sorted(found))
