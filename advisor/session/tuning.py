"""One tuning in an open study folder: probe, search, choose, confirm, write."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from advisor.decide.answer import Answer, store_answer
from advisor.decide.candidate import Confirmation, Recommendation
from advisor.decide.eligible import is_measured
from advisor.goal import Goal, GoalKind
from advisor.hardware.mesh import MeshAxis
from advisor.report.progress import Progress
from advisor.search.propose.standing import Standing
from advisor.session.answer.conclude import Conclusion
from advisor.session.answer.confirm import confirm
from advisor.session.answer.emit import digests, emit
from advisor.session.answer.timings import timings_of
from advisor.session.context import StudyContext
from advisor.session.explore import Search
from advisor.session.ledger import Ledger
from advisor.session.preparation import Preparation
from advisor.session.setup.fit import fit_to_workload
from advisor.session.setup.same_model import keep_identity, model_of
from advisor.session.trials.guard import Guard
from advisor.session.trials.probe import count_parameters, probe
from advisor.session.trials.trials import Trials
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner

__all__ = ["Tuning"]


class Tuning:
    """The steps of one tuning.

    Args:
        preparation: The request, checked against this machine.
        folder: The study folder, its lock held.
        goal: The goal, with the memory limit of this study.
        progress: Told of everything that happens.
        notes: Notes for the user so far.
        searched: An answer of this study whose search is enough: only the pick is made and confirmed again.
    """

    def __init__(
        self,
        preparation: Preparation,
        folder: StudyFolder,
        goal: Goal,
        progress: Progress,
        notes: Sequence[str],
        searched: Answer | None = None,
    ) -> None:
        self._preparation = preparation
        self._folder = folder
        self._goal = goal
        self._progress = progress
        self._notes = list(notes)
        self._searched = searched

    def run(self) -> Answer:
        """Probe, search, choose, confirm, write."""
        preparation, request = self._preparation, self._preparation.request
        hardware, budget = preparation.hardware, preparation.budget
        self._progress.begin(
            workload=request.source.name,
            device=hardware.name,
            goal=self._goal.kind.value,
            time_limit_seconds=budget.limit_seconds,
            trials=request.trials,
        )
        for note in self._notes:
            self._progress.note(note)
        ledger = Ledger(self._folder, self._goal.kind)
        usable = max(preparation.memory.usable_bytes, self._goal.memory_limit_bytes)
        with Runner(self._folder.path, nodes=request.nodes) as runner:
            self._progress.stage("the model's first plain step")
            space = preparation.space
            degrees = _divisors(preparation.gpu_counts) if space.divides(MeshAxis.TENSOR) else ()
            facts, probed = probe(request, hardware, usable, space.libraries, degrees, budget=budget, runner=runner)
            keep_identity(self._folder, probed)
            goal, resolved = fit_to_workload(request, space, self._goal, facts, hardware, self._say)
            context = StudyContext(
                request=request,
                folder=self._folder,
                hardware=hardware,
                usable_bytes=usable,
                goal=goal,
                facts=facts,
                space=resolved,
                ledger=ledger,
                budget=budget,
                progress=self._progress,
            )
            return self._answer(context, runner)

    def _say(self, note: str) -> None:
        self._notes.append(note)
        self._progress.note(note)

    def _answer(self, context: StudyContext, runner: Runner) -> Answer:
        trials = Trials(context, runner)
        guard = Guard(context, trials)
        search = Search(context, trials, guard, self._shared_name())
        interrupted = exhausted = False
        try:
            stopped_because, exhausted = self._search(context, search, runner)
        except KeyboardInterrupt:
            if not any(is_measured(candidate) for candidate in context.ledger.candidates):
                raise
            interrupted = True
            stopped_because = "it was interrupted"
        self._notes += search.notes
        conclusion = self._conclusion(context, stopped_because, search.standings)
        recommendation, interrupted = self._concluded(context, conclusion, trials, guard, interrupted)
        request, searched = context.request, self._searched
        answer = Answer(
            recommendation=recommendation,
            workload=request.source.name,
            goal=context.goal,
            folder=str(self._folder.path),
            hardware=context.hardware,
            facts=context.facts,
            versions=self._preparation.marker.versions,
            date=conclusion.date,
            trials=len(recommendation.ranking),
            trial_budget=request.trials if searched is None else searched.trial_budget,
            time_budget_seconds=(context.budget.limit_seconds if searched is None else searched.time_budget_seconds),
            complete=not interrupted,
            exhausted=exhausted,
            notes=tuple(self._notes),
            digests=digests(conclusion, recommendation),
            timings=timings_of(runner.spent, context.budget.elapsed_seconds),
        )
        store_answer(answer, self._folder)
        return answer

    def _search(self, context: StudyContext, search: Search, runner: Runner) -> tuple[str, bool]:
        """Search, unless an earlier search is enough; return why it ended, and whether nothing is left to try."""
        if self._searched is not None:
            # Notes about the measurements still hold.
            self._notes.extend(note for note in self._searched.notes if note not in self._notes)
            note = "nothing was searched again: the pick alone, from what was measured before, is new"
            if note not in self._notes:
                self._say(note)
            return self._searched.recommendation.stopped_because, self._searched.exhausted
        if context.goal.kind is not GoalKind.BIGGER:
            return search.run()
        context.progress.stage("counting the parameters of every size")
        counts = count_parameters(
            context.request, context.hardware, context.usable_bytes, budget=context.budget, runner=runner
        )
        return search.run_over_sizes(counts)

    def _shared_name(self) -> str:
        """The study's name in a shared storage, which does not depend on the paths a worker reads the model from."""
        model, marker = model_of(self._folder), self._preparation.marker
        return f"{self._preparation.request.source.name}-{marker.fingerprint}" + (f"-{model[:8]}" if model else "")

    def _conclusion(self, context: StudyContext, stopped_because: str, standings: dict[str, Standing]) -> Conclusion:
        facts = context.facts
        tried = {(one.policy.combination_key, one.policy.gpu_count) for one in context.ledger.candidates}
        count = context.space.counted()
        return Conclusion(
            goal=context.goal,
            refused_settings=context.space.refused,
            untried=msgspec.structs.replace(count, number=max(0 if count.exact else 1, count.number - len(tried))),
            stopped_because=stopped_because,
            folder=self._folder,
            workload=context.request.source.name,
            hardware=context.hardware,
            fingerprints=self._preparation.marker.fingerprints,
            date=datetime.date.today().isoformat(),
            workload_options=facts.workload_options,
            size_arguments=facts.size_arguments,
            layout=facts.batch_layout,
            standings=standings,
        )

    def _concluded(
        self, context: StudyContext, conclusion: Conclusion, trials: Trials, guard: Guard, interrupted: bool
    ) -> tuple[Recommendation, bool]:
        """Choose and confirm; return the answer and whether the user interrupted.

        After an interruption the files are written without a confirming run.
        """
        if not interrupted:
            try:
                return confirm(context, conclusion, trials, guard, say=self._say, repeat=self._searched is None)
            except KeyboardInterrupt:
                pass
        # Methods that were found to break the training must not win at another, unchecked batch.
        recommendation = conclusion.choose([guard.remembered(candidate) for candidate in context.ledger.candidates])
        winner = recommendation.winner.measurement
        assert winner is not None
        recommendation = msgspec.structs.replace(
            recommendation,
            confirmation=Confirmation(
                outcome=Outcome.INTERRUPTED,
                reason="interrupted before the wrapper was run",
                promised_samples_per_second=winner.samples_per_second,
            ),
        )
        emit(conclusion, recommendation, self._say)
        return recommendation, True


def _divisors(counts: Sequence[int]) -> tuple[int, ...]:
    """Every number above 1 that divides one of these."""
    found = {degree for count in counts for degree in range(2, count + 1) if count % degree == 0}
    return tuple(sorted(found))
