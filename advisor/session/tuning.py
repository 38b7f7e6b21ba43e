"""The course of one tuning in an open study folder: probe, search, choose, confirm, write."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping
from pathlib import Path

import msgspec

import advisor.errors
from advisor.decide.answer import Answer, store_answer
from advisor.decide.candidate import Candidate, Confirmation, Recommendation
from advisor.decide.eligible import is_measured
from advisor.decide.score import directions
from advisor.errors import NothingMeasuredError, WorkloadError
from advisor.goal import Goal, GoalKind
from advisor.hardware.hardware import Hardware
from advisor.report.progress import Progress
from advisor.search.propose.standing import Standing
from advisor.search.space.counting import Count
from advisor.search.space.requested_methods import check_asked
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import SearchSpace
from advisor.search.study.sampler import Proposer
from advisor.session.answer.conclude import Conclusion, confirm
from advisor.session.answer.emit import digests, emit
from advisor.session.answer.timings import timings_of
from advisor.session.budget import TimeBudget
from advisor.session.climb import SizeSearch
from advisor.session.ledger import append_candidate, lost_candidates, read_candidates, without_chance
from advisor.session.loop import SearchLoop
from advisor.session.request import TuneRequest
from advisor.session.setup.fixed import resolve_on_devices, with_global_batch
from advisor.session.setup.same_model import keep_identity, model_of
from advisor.session.setup.sharing import within_fidelity
from advisor.session.study import StudyMarker
from advisor.session.trials.compare import ComparingEvaluator
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.guard import Guard
from advisor.session.trials.sized_trials import SizedTrials
from advisor.session.trials.trials import Trials
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ProbeResult, TrialResult
from advisor.workload.facts import Facts

__all__ = ["Tuning"]

_FIRST_BATCH = 2
"""First micro-batch of every sizing: normalization over a batch of one sample is degenerate or an error."""

_LINES_OF_CRASH = 80
"""Of a log: the stack of a process that crashed begins with the user's frames, and this package's are left out."""


_LINES = 20
"""Of what a failed probe printed, at its end."""


class Tuning:
    """The steps of one tuning, sharing what the earlier ones found.

    After a ``settled`` answer of the same study nothing is searched: the pick alone is made and confirmed anew.
    """

    def __init__(
        self,
        request: TuneRequest,
        goal: Goal,
        space: SearchSpace,
        hardware: Hardware,
        marker: StudyMarker,
        folder: StudyFolder,
        budget: TimeBudget,
        progress: Progress,
        notes: list[str],
        usable_bytes: int,
        settled: Answer | None = None,
    ) -> None:
        self._request = request
        self._goal = goal
        self._space = space
        self._hardware = hardware
        self._marker = marker
        self._folder = folder
        self._budget = budget
        self._progress = progress
        self._notes = notes
        self._standings: dict[str, Standing] = {}
        self._usable_bytes = usable_bytes
        self._settled = settled

    def run(self) -> Answer:
        """Probe, search, choose, confirm, write."""
        request = self._request
        self._progress.begin(
            workload=request.source.name,
            device=self._hardware.name,
            goal=self._goal.kind.value,
            time_limit_seconds=self._budget.limit_seconds,
            trials=request.trials,
        )
        for note in self._notes:
            self._progress.note(note)
        earlier = read_candidates(self._folder.ledger)
        self._tried_again = lost_candidates(earlier)
        candidates = without_chance(earlier, self._goal.kind)
        with Runner(self._folder.path, nodes=request.nodes) as runner:
            trials = Trials(
                runner=runner,
                source=request.source,
                hardware=self._hardware,
                goal=self._goal,
                usable_bytes=max(self._usable_bytes, self._goal.memory_limit_bytes),
                budget=self._budget,
                seed=request.seed,
                first_batch=min(_FIRST_BATCH, request.global_batch or _FIRST_BATCH),
                earlier=candidates,
            )
            facts = self._probe(trials, runner)
            layout = facts.batch_layout
            whole = layout.why_uncut
            if layout.changes_when_split and not facts.has_batchnorm:
                whole = f"{layout.changes_when_split} (--fidelity model allows more)"
            if layout.sizes is not None:
                self._say(layout.sizes.words)
            if whole:
                self._say(
                    f"a batch is trained on in one piece, on one device: {whole}. Give training.step no more samples "
                    "than the policy's micro-batch"
                )
            asked = self._goal.gpu_counts
            self._goal = with_global_batch(self._goal, facts)
            counts = self._goal.gpu_counts
            if counts != asked:
                left_out = ", ".join(str(count) for count in asked if count not in counts)
                self._say(
                    f"a global batch of {self._goal.global_batch} cannot be split over {left_out} devices: left out"
                )
            resolved, left_out_because = resolve_on_devices(
                self._space, facts, self._hardware, self._goal, asked=request.asks_for_several
            )
            if left_out_because is not None:
                self._say(left_out_because)
                self._goal = msgspec.structs.replace(self._goal, gpu_counts=resolved.gpu_counts)
            check_asked(request.methods, resolved)
            shared = within_fidelity(self._goal, resolved, facts)
            self._goal, resolved = shared.goal, shared.space
            if shared.note:
                self._say(shared.note)
            trials.reference = lambda gpu_count: resolved.on_devices((), gpu_count)
            self._guard = Guard(trials=trials, budget=self._budget, progress=self._progress, earlier=candidates)
            return self._search(trials, facts, resolved, candidates)

    def _say(self, note: str) -> None:
        self._notes.append(note)
        self._progress.note(note)

    def _keep(self, candidate: Candidate) -> None:
        append_candidate(self._folder.ledger, candidate)

    def _probe(self, trials: Trials, runner: Runner) -> Facts:
        self._progress.stage("the model's first plain step")
        result = trials.probe(self._space.libraries)
        if result.facts is not None:
            keep_identity(self._folder, result)
            return result.facts
        _raise_if_lost(result, "The model must complete one plain training step before anything can be tuned")
        raise WorkloadError(_why_probe_failed(result, runner, self._budget), result.traceback_text)

    def _search(self, trials: Trials, facts: Facts, resolved: ResolvedSpace, candidates: list[Candidate]) -> Answer:
        # Other workers of a shared study choose from what was timed: they have not seen what was compared here.
        alone = resolved.gpu_counts == (1,) and self._request.storage is None
        trials.turns.wanted = self._goal.kind is GoalKind.FASTER and alone
        kind = ComparingEvaluator if trials.turns.wanted else Evaluator
        evaluator = kind(
            trials=trials,
            budget=self._budget,
            goal=self._goal,
            facts=facts,
            hardware=self._hardware,
            progress=self._progress,
            times_half=len(resolved.batch_fractions) == 1,
        )
        interrupted = exhausted = False
        try:
            if self._settled is not None:
                stopped_because, exhausted = self._settled.recommendation.stopped_because, self._settled.exhausted
                self._take_over_notes(self._settled)
            elif self._goal.kind is GoalKind.BIGGER:
                stopped_because, exhausted = self._explore_sizes(trials, facts, resolved, candidates)
            else:
                stopped_because, exhausted = self._explore(evaluator, resolved, candidates)
        except KeyboardInterrupt:
            if not any(is_measured(candidate) for candidate in candidates):
                raise
            interrupted = True
            stopped_because = "it was interrupted"
        self._notes.extend(evaluator.notes)
        tried = {(candidate.policy.combination_key, candidate.policy.gpu_count) for candidate in candidates}
        count = resolved.counted()
        left = msgspec.structs.replace(count, number=max(0 if count.exact else 1, count.number - len(tried)))
        conclusion = self._conclusion(facts, resolved, left, stopped_because)
        recommendation, interrupted = self._concluded(conclusion, candidates, trials, interrupted)
        answer = Answer(
            recommendation=recommendation,
            workload=self._request.source.name,
            goal=self._goal,
            folder=str(self._folder.path),
            hardware=self._hardware,
            facts=facts,
            versions=self._marker.versions,
            date=conclusion.date,
            trials=len(recommendation.ranking),
            trial_budget=self._request.trials if self._settled is None else self._settled.trial_budget,
            time_budget_seconds=(
                self._budget.limit_seconds if self._settled is None else self._settled.time_budget_seconds
            ),
            complete=not interrupted,
            exhausted=exhausted,
            notes=tuple(self._notes),
            digests=digests(conclusion, recommendation),
            timings=timings_of(trials.spent, self._budget.elapsed_seconds),
        )
        store_answer(answer, self._folder)
        return answer

    def _take_over_notes(self, settled: Answer) -> None:
        """What was said about the measurements is true of them still."""
        self._notes.extend(note for note in settled.notes if note not in self._notes)
        note = "nothing was searched again: the pick alone, from what was measured before, is new"
        if note not in self._notes:
            self._say(note)

    def _explore(self, evaluator: Evaluator, resolved: ResolvedSpace, candidates: list[Candidate]) -> tuple[str, bool]:
        """Search; why it ended, and whether nothing is left to try."""
        with contextlib.closing(self._proposer(resolved)) as proposer:
            loop = SearchLoop(
                proposer=proposer,
                evaluator=evaluator,
                budget=self._budget,
                goal=self._goal,
                trial_budget=self._request.trials,
                tried_again=self._tried_again,
                progress=self._progress,
                guard=self._guard,
                candidates=candidates,
                keep=self._keep,
            )
            try:
                return loop.run(), proposer.untried == 0
            finally:
                self._notes.extend(_notes_on_pairs(proposer.failing_pairs))
                self._standings = proposer.standings()

    def _explore_sizes(
        self, trials: Trials, facts: Facts, resolved: ResolvedSpace, candidates: list[Candidate]
    ) -> tuple[str, bool]:
        """Find the largest size for each combination; why it ended, and whether nothing is left to try."""
        self._progress.stage("counting the parameters of every size")
        counted = trials.count()
        if counted.counts is None:
            rule = "The sizes in SIZES must be counted before one is run"
            _raise_if_lost(counted, rule)
            reason = counted.reason
            if counted.outcome is not Outcome.FAILED:
                reason = f"{rule}, but that ended as {reason}"
            raise WorkloadError(reason, counted.traceback_text)
        # A combination is proposed once: which batches it is tried at is the climb's affair.
        proposer = self._proposer(msgspec.structs.replace(resolved, batch_fractions=(1.0,)))
        sized = SizedTrials(
            trials=trials,
            counts=counted.counts,
            facts=facts,
            hardware=self._hardware,
            budget=self._budget,
            goal=self._goal,
            trial_budget=self._request.trials,
            tried_again=self._tried_again,
            progress=self._progress,
            guard=self._guard,
            candidates=candidates,
            keep=self._keep,
        )
        search = SizeSearch(proposer=proposer, sized=sized, budget=self._budget, goal=self._goal)
        try:
            return search.run(), proposer.untried == 0
        finally:
            self._notes.extend(sized.notes)
            proposer.close()

    def _proposer(self, resolved: ResolvedSpace) -> Proposer:
        shared = self._request.storage
        return Proposer(
            resolved,
            storage=self._folder.database if shared is None else shared,
            # What a folder holds is checked by its marker; in a shared storage the name tells studies apart.
            study_name="momadvise" if shared is None else self._shared_name(),
            maximize=directions(self._goal.kind),
            seed=self._request.seed,
            sampler=self._request.sampler,
        )

    def _shared_name(self) -> str:
        """Of the study in a storage that workers share: of this model, whatever paths each of them reads it from."""
        model = model_of(self._folder)
        return f"{self._request.source.name}-{self._marker.fingerprint}" + (f"-{model[:8]}" if model else "")

    def _conclusion(self, facts: Facts, resolved: ResolvedSpace, untried: Count, stopped_because: str) -> Conclusion:
        return Conclusion(
            goal=self._goal,
            refused_settings=resolved.refused,
            untried=untried,
            stopped_because=stopped_because,
            folder=self._folder,
            workload=self._request.source.name,
            hardware=self._hardware,
            fingerprints=self._marker.fingerprints,
            date=datetime.date.today().isoformat(),
            workload_options=facts.workload_options,
            size_arguments=facts.size_arguments,
            layout=facts.batch_layout,
            device_rates=facts.device_rates,
            standings=self._standings,
        )

    def _concluded(
        self, conclusion: Conclusion, candidates: list[Candidate], trials: Trials, interrupted: bool
    ) -> tuple[Recommendation, bool]:
        """Choose and confirm; and whether the user interrupted.

        After an interruption the files are written without a confirming run.
        """
        if not interrupted:
            try:
                return confirm(
                    conclusion,
                    candidates,
                    trials=trials,
                    guard=self._guard,
                    keep=self._keep,
                    budget=self._budget,
                    progress=self._progress,
                    say=self._say,
                    repeat=self._settled is None,
                )
            except KeyboardInterrupt:
                pass
        # Another batch of methods that were found to break the training must not win for want of a look.
        recommendation = conclusion.choose([self._guard.remembered(candidate) for candidate in candidates])
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


def _notes_on_pairs(pairs: Mapping[tuple[str, str], int]) -> list[str]:
    """Say which settings do not go together here, as far as the search has seen."""
    return [
        f"{first} and {second} failed in each of {count} combinations that had both, while each went well without the "
        "other: they do not go together here"
        for (first, second), count in pairs.items()
    ]


def _raise_if_lost(result: TrialResult, rule: str) -> None:
    """What ended a process from outside says nothing of the model: no mistake of the user's."""
    if result.outcome is Outcome.LOST:
        raise NothingMeasuredError(
            f"{rule}, but that ended as {result.outcome.value}: {result.reason}. Run the same command again."
        )


def _why_probe_failed(result: ProbeResult, runner: Runner, budget: TimeBudget) -> str:
    """The probe is plain training at the smallest batch: if it fails, nothing can be tuned."""
    rule = "The model must complete one plain training step before anything can be tuned"
    if result.outcome is Outcome.FAILED:
        return result.reason
    if result.outcome is Outcome.TIMEOUT:
        return (
            f"{rule}, but it did not within {budget.probe_limit_seconds:.0f} s. Make it smaller, look for something "
            "that waits forever, or raise --time-limit (a third of it is what the first step may take)."
        )
    text = f"{rule}, but it ended as {result.outcome.value}"
    if result.reason:
        text += f": {result.reason}"
    tail = _without_own_frames(runner.tail_of_log(result.key, lines=_LINES_OF_CRASH))
    if tail:
        text += "\nThe last lines that it printed:\n" + tail
    return text


def _without_own_frames(log: str) -> str:
    """A log without the lines about this package that Python's fault handler adds below the user's own frames."""
    own = f'File "{Path(advisor.errors.__file__).parent}'
    noise = (own, "Extension modules:")
    lines = [line for line in log.splitlines() if not line.strip().startswith(noise)]
    return "\n".join(lines[-_LINES:])
