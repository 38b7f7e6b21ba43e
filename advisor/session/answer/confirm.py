"""Confirm the winner's wrapper in a fresh process, and fall back to the next best if that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.confirmation import Confirmation
from advisor.decide.eligible import is_measured, why_not_eligible
from advisor.decide.repeat import MOST_REPEATED
from advisor.errors import NothingMeasuredError, PreferenceNotMetError, TrialError
from advisor.goal import GoalKind
from advisor.measure.in_turn import Speedup
from advisor.policy.policy import Policy
from advisor.report.why import explained
from advisor.search.space.space import Combination
from advisor.session.answer.conclude import Conclusion
from advisor.session.answer.emit import emit, take_back
from advisor.session.answer.grow import grow_winner
from advisor.session.answer.leaders import recommend
from advisor.session.answer.remeasure import ROUNDS, measure_leaders_again
from advisor.session.answer.where_time_goes import with_time_explained
from advisor.session.answer.wrapper_runs import WrapperRun, WrapperRuns
from advisor.session.context import StudyContext
from advisor.session.setup.wait_idle import wait_as_asked
from advisor.session.trials.guard import Guard
from advisor.session.trials.trials import Trials
from advisor.text.units import format_rate, format_times
from advisor.trial.outcome import Outcome

__all__ = ["confirm", "not_run"]

_CONFIRMATIONS = 3
"""Most winners to try when wrappers do not run."""

_NOT_RUN = "Others within it were not confirmed, for want of time: a longer --time-limit may confirm one."


def confirm(
    context: StudyContext,
    conclusion: Conclusion,
    trials: Trials,
    guard: Guard,
    *,
    say: Callable[[str], None] | None = None,
    repeat: bool = True,
) -> tuple[Recommendation, bool]:
    """Write the winner's files, run its wrapper, and fall back to the next best if that fails.

    A winner whose wrapper does not run is recorded as failed, so it is never recommended.

    Returns:
        The recommendation with its files written, confirmed unless the confirming run took too long or was killed from
        outside; and whether the user interrupted what came after the confirmation.

    Raises:
        KeyboardInterrupt: Interrupted before a confirmation ended.
        TrialError: No winner is left, or too many wrappers failed; no policy is left in the folder then.
    """
    say = say or context.progress.note
    for note in wait_as_asked(
        context.request.wait_idle_seconds, context.hardware, context.goal, context.budget, context.progress
    ):
        say(note)
    # The leader after a repetition may have been measured only once, and be just as lucky.
    rounds = max(ROUNDS, MOST_REPEATED) if conclusion.standings else ROUNDS
    for _ in range(rounds if repeat else 0):
        leading = recommend(context, conclusion.choose, guard)
        if not measure_leaders_again(context, trials, leading, conclusion.standings):
            break
    if repeat:
        grow_winner(context, trials, recommend(context, conclusion.choose, guard))
    return _Confirming(context, conclusion, trials, guard, say).run()


def not_run(
    context: StudyContext,
    conclusion: Conclusion,
    guard: Guard,
    say: Callable[[str], None],
    *,
    choose: Callable[[Sequence[Candidate]], Recommendation] | None = None,
) -> Recommendation:
    """The recommendation after an interruption, with its files written and its wrapper not run."""
    # Methods that were found to break the training must not win at another, unchecked batch.
    recommendation = (choose or conclusion.choose)([guard.remembered(one) for one in context.ledger.candidates])
    earlier = recommendation.winner.confirmed
    again = "" if earlier is None else f" again; before, it showed {format_times(earlier.value)} the baseline"
    unconfirmed = Confirmation(
        outcome=Outcome.INTERRUPTED,
        reason=f"interrupted before the wrapper had run{again}",
        promised_samples_per_second=recommendation.winner.samples_per_second,
    )
    recommendation = msgspec.structs.replace(recommendation, confirmation=unconfirmed)
    emit(conclusion, recommendation, say)
    return recommendation


@dataclass
class _Confirming:
    """Winners, one after the other, until one is confirmed."""

    context: StudyContext
    conclusion: Conclusion
    trials: Trials
    guard: Guard
    say: Callable[[str], None]
    failures: list[str] = field(default_factory=list)
    beaten: int = 0
    ruled_out: tuple[Policy, str] | None = None
    vague: dict[tuple[object, ...], Speedup] = field(default_factory=dict)
    """What confirmations showed that further pairs of processes may overturn, by policy and size."""

    def run(self) -> tuple[Recommendation, bool]:
        try:
            return self._confirmed()
        except KeyboardInterrupt:
            if not self.beaten:
                raise
            # What the confirmations before it have shown is not forgotten.
            return not_run(self.context, self.conclusion, self.guard, self.say, choose=self._choose), True

    def _confirmed(self) -> tuple[Recommendation, bool]:
        while len(self.failures) < _CONFIRMATIONS:
            recommendation, interrupted = self._try()
            if recommendation is not None:
                return recommendation, interrupted
        baseline = self.context.ledger.baseline
        if baseline is not None and is_measured(baseline) and why_not_eligible(baseline, self.context.goal) is None:
            self.ruled_out = baseline.policy, f"the wrappers of the best {_CONFIRMATIONS} failed, and no other was run"
            recommendation, interrupted = self._try()
            if recommendation is not None:
                return recommendation, interrupted
        take_back(self.conclusion.folder)
        raise NothingMeasuredError(
            f"A policy must run in a fresh process before it is recommended, but the best {len(self.failures)} did "
            f"not. {'; '.join(self.failures)}"
        )

    def _try(self) -> tuple[Recommendation | None, bool]:
        """Confirm the current winner; ``None`` if it lost."""
        try:
            recommendation = recommend(self.context, self._choose, self.guard)
        except TrialError as error:
            if self.failures or self.beaten:  # the files are those of a policy that was not confirmed
                take_back(self.conclusion.folder)
            if isinstance(error, PreferenceNotMetError) and self._some_were_not_run():
                raise PreferenceNotMetError(f"{error} {_NOT_RUN}") from error
            raise
        winner, baseline = recommendation.winner, recommendation.baseline
        emit(self.conclusion, recommendation, self.say)
        path = str(self.conclusion.folder.wrapper)
        run = WrapperRuns(self.context, self.trials, path).confirm(recommendation)
        # A baseline that cannot win replaces nobody: the answer says that it is faster, and why it may not win.
        if baseline is not None and why_not_eligible(baseline, self.context.goal) is None:
            reason = self._why_beaten(winner, run)
            if reason is not None:
                self._give_way(winner, baseline, reason)
                if run.interrupted:
                    raise KeyboardInterrupt
                return None, False
        recommendation = msgspec.structs.replace(recommendation, confirmation=run.confirmation)
        recommendation = explained(recommendation, self.context.goal)
        outcome, interrupted = run.confirmation.outcome, run.interrupted
        if outcome is Outcome.OK and not interrupted:
            try:
                recommendation = with_time_explained(self.context, self.trials, recommendation)
            except KeyboardInterrupt:
                interrupted = True
        if outcome is Outcome.OK or outcome.is_by_chance:
            # A timeout means a busy machine, not a broken policy: the search measured it. The answer says that it is
            # not confirmed, and running the same command confirms it.
            emit(self.conclusion, recommendation, self.say)
            return recommendation, interrupted
        self._fail(winner, run.confirmation)
        return None, False

    def _some_were_not_run(self) -> bool:
        """Whether another policy could be the answer, and only its confirmation is missing, for want of time."""
        if self.ruled_out is None or self.beaten >= _CONFIRMATIONS or len(self.failures) >= _CONFIRMATIONS:
            return False
        self.ruled_out = None
        try:
            self._choose(self.context.ledger.candidates)
        except TrialError:
            return False
        return True

    def _choose(self, candidates: Sequence[Candidate]) -> Recommendation:
        """Choose; without time to run another wrapper, only among the baseline and policies that were run.

        The others are ruled out of this answer only, not in the ledger: a run with more time may confirm one.
        """
        candidates = [
            one if (found := self.vague.get(_identity(one))) is None else msgspec.structs.replace(one, confirmed=found)
            for one in candidates
        ]
        if self.ruled_out is None:
            return self.conclusion.choose(candidates)
        baseline, reason = self.ruled_out

        def ruled_out(one: Candidate) -> Candidate:
            if one.policy == baseline or not is_measured(one):
                return one
            if one.confirmed is not None or one.not_confirmed:
                return one  # it was run itself
            return msgspec.structs.replace(one, not_confirmed=reason)

        return self.conclusion.choose([ruled_out(one) for one in candidates])

    def _why_beaten(self, winner: Candidate, run: WrapperRun) -> str | None:
        """Record why the winner may not win after its confirmation; ``None`` if it may.

        A gain that is only vague is no gain in this answer. A run with more time confirms it in further processes.
        """
        if run.found is not None and self.context.goal.kind is not GoalKind.BIGGER:  # larger models are slower
            reason = why_not_eligible(msgspec.structs.replace(winner, confirmed=run.found), self.context.goal)
            if reason is None or run.found.value <= 1 or not run.may_go_on:
                return self._mark(winner, confirmed=run.found)
            self.vague[_identity(winner)] = run.found
            return reason
        reason = _no_better_than_baseline(winner, run.confirmation, self.context)
        if reason is not None:
            self._mark(winner, not_confirmed=reason)
        return reason

    def _mark(self, winner: Candidate, **found: object) -> str | None:
        """Record a confirmation's findings about the winner's policy; return why it may not win now, if so."""

        def marked(one: Candidate) -> Candidate:
            same = one.policy == winner.policy and one.model_size == winner.model_size
            return msgspec.structs.replace(one, **found) if same and is_measured(one) else one

        self.context.ledger.replace(marked)
        return why_not_eligible(msgspec.structs.replace(winner, **found), self.context.goal)

    def _give_way(self, winner: Candidate, baseline: Candidate, reason: str) -> None:
        self.context.progress.note(f"{_name(winner)}: {reason}")
        self.beaten += 1
        if self.beaten >= _CONFIRMATIONS or not self.context.budget.may_confirm_another:
            self.ruled_out = baseline.policy, f"the leader was not confirmed, and no other was run: {reason}"

    def _fail(self, winner: Candidate, confirmation: Confirmation) -> None:
        reason = f"its wrapper, run in a fresh process, ended as {confirmation.outcome.value}"
        if confirmation.reason:
            reason += f": {confirmation.reason}"
        self.failures.append(f"{_name(winner)}: {reason}")
        self.context.progress.note(self.failures[-1])

        def failed(one: Candidate) -> Candidate:
            if one.policy.key != winner.policy.key or one.model_size != winner.model_size:
                return one
            return msgspec.structs.replace(one, outcome=confirmation.outcome, reason=reason)

        self.context.ledger.replace(failed)


def _no_better_than_baseline(winner: Candidate, confirmation: Confirmation, context: StudyContext) -> str | None:
    """Without alternating steps: the reason that the baseline, measured right after the winner, was no worse.

    ``cheapest`` divides the same samples among devices of one price: a winner must be faster, or use fewer of them and
    be faster per device.
    """
    again, baseline, goal = confirmation.measurement, confirmation.baseline_samples_per_second, context.goal
    if goal.kind is GoalKind.BIGGER or again is None or baseline is None or context.ledger.baseline is None:
        return None
    per_device = context.ledger.baseline.policy.gpu_count / winner.policy.gpu_count
    cheaper = goal.kind is GoalKind.CHEAPEST and again.samples_per_second * per_device > baseline
    if again.samples_per_second > baseline or cheaper:
        return None
    return (
        f"run again in a fresh process, its wrapper trained {format_rate(again.samples_per_second)} samples/s, and the "
        f"baseline right after it {format_rate(baseline)}"
    )


def _identity(candidate: Candidate) -> tuple[object, ...]:
    return candidate.policy.key, *candidate.model_size.items()


def _name(candidate: Candidate) -> str:
    return Combination.of(candidate.policy).words
