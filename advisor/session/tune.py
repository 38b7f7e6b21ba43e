"""One tuning from request to answer: the order of everything."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec

import advisor.errors
from advisor.decide.answer import Answer, load_answer, store_answer
from advisor.decide.candidate import Candidate, Confirmation, Recommendation
from advisor.decide.score import maximizes
from advisor.errors import WorkloadError
from advisor.policy.file import Fingerprints
from advisor.problem.detect import detect_hardware
from advisor.problem.facts import Facts
from advisor.problem.goal import Goal
from advisor.problem.hardware import Hardware
from advisor.problem.units import format_bytes
from advisor.report.progress import Progress
from advisor.search.resolve import resolve
from advisor.search.resolved import ResolvedSpace
from advisor.search.sampler import Proposer
from advisor.search.space import SearchSpace, load_space
from advisor.session.budget import TimeBudget
from advisor.session.candidates import append_candidate, read_candidates
from advisor.session.conclude import Conclusion, confirm, emit_policy, emit_wrapper
from advisor.session.evaluate import Evaluator
from advisor.session.limits import memory_budget
from advisor.session.loop import SearchLoop
from advisor.session.ranks import failing_together, launch_identity
from advisor.session.request import TuneRequest
from advisor.session.study import StudyMarker, check_folder, default_folder, locked, open_study, study_marker
from advisor.session.trials import Trials
from advisor.session.versions import versions
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.runner import Runner
from advisor.trial.spec import TrialResult

__all__ = ["run_session"]

_FIRST_BATCH = 2
"""First micro-batch of every sizing: normalization over a batch of one sample is degenerate or an error."""


def run_session(request: TuneRequest, progress: Progress) -> Answer:
    """Tune, or give the stored answer of an equal request back.

    Args:
        request: What to tune.
        progress: Told of everything that happens.

    Raises:
        UserError: A mistake that the user can fix.
        TrialError: Nothing could be measured, or nothing fits.
        KeyboardInterrupt: Interrupted before there was anything to answer with.
    """
    request.check()
    budget = TimeBudget(request.time_limit_seconds)
    space = load_space(request.search_space)
    hardware = detect_hardware(request.device)
    memory = memory_budget(hardware, request.memory_limit_bytes)
    marker = study_marker(request, hardware, versions(), space.canonical_text, memory.limit_bytes)
    path = request.output if request.output is not None else default_folder(marker)
    check_folder(path, marker)  # before locking: not even a lock file may appear in a folder that is not ours

    def announce_wait() -> None:
        progress.note(f"another process is tuning into {path}; waiting for its answer")

    with locked(path, on_wait=announce_wait if request.wait else None):
        folder, marker = open_study(path, marker)
        notes = list(memory.notes)
        stored = load_answer(folder)
        if stored is not None and _still_answers(stored, request):
            return _with_note_if_too_large(stored, memory.limit_bytes)
        if marker.memory_limit_bytes > memory.limit_bytes:
            notes.append("less memory is free now than when this study began; its limit was kept")
        goal = Goal(
            kind=request.goal,
            global_batch=request.global_batch,
            fidelity=request.fidelity or space.fidelity,
            memory_limit_bytes=marker.memory_limit_bytes,
        )
        study = _Study(request, goal, space, hardware, marker, folder, budget, progress, notes, memory.usable_bytes)
        with failing_together(folder, launch_identity()), progress:
            return study.run()


def _with_note_if_too_large(stored: Answer, limit_bytes: int) -> Answer:
    measurement = stored.recommendation.winner.measurement
    assert measurement is not None, "a winner is measured"
    peak = measurement.memory.peak_bytes
    if peak <= limit_bytes:
        return stored
    note = f"its peak of {format_bytes(peak)} is more than the {format_bytes(limit_bytes)} that may be taken right now"
    return msgspec.structs.replace(stored, notes=(*stored.notes, note))


def _still_answers(stored: Answer, request: TuneRequest) -> bool:
    """Whether a stored answer is final for this request: the search had ended by itself with no smaller budget."""
    if not stored.complete:
        return False
    if stored.exhausted:
        return True
    return request.trials <= stored.trial_budget and request.time_limit_seconds <= stored.time_budget_seconds


class _Study:
    """The steps of one tuning, sharing what the earlier ones found."""

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
        self._usable_bytes = usable_bytes

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
        candidates = read_candidates(self._folder.ledger)
        with Runner(self._folder.path) as runner:
            trials = Trials(
                runner=runner,
                source=request.source,
                hardware=self._hardware,
                memory_limit_bytes=self._goal.memory_limit_bytes,
                usable_bytes=max(self._usable_bytes, self._goal.memory_limit_bytes),
                budget=self._budget,
                seed=request.seed,
                first_batch=min(_FIRST_BATCH, request.global_batch or _FIRST_BATCH),
                earlier=candidates,
            )
            facts = self._probe(trials, runner)
            resolved = resolve(self._space, facts, self._hardware, self._goal.fidelity)
            return self._search(trials, facts, resolved, candidates)

    def _probe(self, trials: Trials, runner: Runner) -> Facts:
        self._progress.stage("the model's first plain step")
        result = trials.probe()
        if result.facts is not None:
            return result.facts
        raise WorkloadError(_why_probe_failed(result, runner, self._budget), result.traceback_text)

    def _search(self, trials: Trials, facts: Facts, resolved: ResolvedSpace, candidates: list[Candidate]) -> Answer:
        evaluator = Evaluator(
            trials=trials,
            budget=self._budget,
            goal=self._goal,
            facts=facts,
            hardware=self._hardware,
            progress=self._progress,
        )
        proposer = Proposer(
            resolved,
            storage=self._folder.database,
            study_name="momadvise",
            maximize=maximizes(self._goal.kind),
            seed=self._request.seed,
        )
        loop = SearchLoop(
            proposer=proposer,
            evaluator=evaluator,
            budget=self._budget,
            goal=self._goal,
            trial_budget=self._request.trials,
            progress=self._progress,
            candidates=candidates,
            keep=lambda candidate: append_candidate(self._folder.ledger, candidate),
        )
        interrupted = False
        try:
            try:
                stopped_because = loop.run()
            except KeyboardInterrupt:
                if not loop.measured:
                    raise
                interrupted = True
                stopped_because = "it was interrupted"
            exhausted = proposer.untried == 0
            conclusion = self._conclusion(facts, resolved, proposer.untried_combinations, stopped_because)
        finally:
            proposer.close()
        self._notes.extend(evaluator.notes)
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
            trials=loop.measured,
            trial_budget=self._request.trials,
            time_budget_seconds=self._budget.limit_seconds,
            complete=not interrupted,
            exhausted=exhausted,
            notes=tuple(self._notes),
        )
        store_answer(answer, self._folder)
        return answer

    def _conclusion(self, facts: Facts, resolved: ResolvedSpace, untried: int, stopped_because: str) -> Conclusion:
        return Conclusion(
            goal=self._goal,
            refused_settings=resolved.refused,
            untried=untried,
            stopped_because=stopped_because,
            folder=self._folder,
            workload=self._request.source.name,
            hardware=self._hardware,
            fingerprints=Fingerprints(
                workload=self._marker.workload,
                hardware=self._marker.hardware,
                versions=self._marker.versions,
                request=self._marker.request,
            ),
            date=datetime.date.today().isoformat(),
            workload_options=facts.workload_options,
        )

    def _concluded(
        self, conclusion: Conclusion, candidates: list[Candidate], trials: Trials, interrupted: bool
    ) -> tuple[Recommendation, bool]:
        """Choose and confirm; after an interruption the files are written without a confirming run."""
        if not interrupted:
            try:
                recommendation = confirm(
                    conclusion, candidates, trials=trials, budget=self._budget, progress=self._progress
                )
                return recommendation, False
            except KeyboardInterrupt:
                pass
        recommendation = conclusion.choose(candidates)
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
        emit_wrapper(conclusion, recommendation)
        emit_policy(conclusion, recommendation)
        return recommendation, True


def _why_probe_failed(result: TrialResult, runner: Runner, budget: TimeBudget) -> str:
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
    tail = _without_own_frames(runner.tail_of_log(result.key))
    if tail:
        text += "\nThe last lines that it printed:\n" + tail
    return text


def _without_own_frames(log: str) -> str:
    """A log without the lines about this package that Python's fault handler adds below the user's own frames."""
    own = f'File "{Path(advisor.errors.__file__).parent}'
    noise = (own, "Extension modules:")
    return "\n".join(line for line in log.splitlines() if not line.strip().startswith(noise))
