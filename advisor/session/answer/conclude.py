"""Choose, write the files, and run what was written in a fresh process before recommending it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from advisor.decide.candidate import Candidate, Confirmation, Recommendation
from advisor.decide.choose import choose
from advisor.decide.eligible import is_measured, why_not_eligible
from advisor.decide.promise import promised, shown
from advisor.decide.repeat import MOST_REPEATED
from advisor.errors import NothingMeasuredError, TrialError
from advisor.goal import Goal, GoalKind
from advisor.hardware.rates import DeviceRates
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.report.progress import Progress
from advisor.report.why import explain, explained
from advisor.search.propose.standing import Standing
from advisor.search.space.counting import Count
from advisor.search.space.space import Combination
from advisor.session.answer.emit import Emission, emit, take_back
from advisor.session.answer.leaders import settled
from advisor.session.answer.remeasure import ROUNDS, measure_leaders_again, times_measured
from advisor.session.answer.where_time_goes import with_time_explained
from advisor.session.budget import TimeBudget
from advisor.session.ledger import Ledger
from advisor.session.trials.guard import Guard
from advisor.session.trials.trials import Trials
from advisor.text.units import format_rate
from advisor.trial.outcome import Outcome

__all__ = ["Conclusion", "confirm"]

_KEPT = 0.9
"""Share of the promised throughput below which a confirmation needs the baseline beside it."""

_APART = 0.1
"""Two runs of one policy may always differ by so much."""

_CONFIRMATIONS = 3
"""Winners that are tried in turn when a wrapper does not run; the search measured them in another process."""


class Conclusion(Emission, frozen=True, kw_only=True):
    """What choosing needs to know besides the candidates.

    Attributes:
        refused_settings: Setting -> why no policy could use it.
        untried: Combinations that were not tried; of a space too large to count, a bound.
        stopped_because: Why the search ended.
        device_rates: What the probe measured of the device; ``None`` if it could not.
        standings: Label of a combination -> what the search's model thinks of it; empty where it has none.
    """

    refused_settings: dict[str, str]
    untried: Count
    stopped_because: str
    device_rates: DeviceRates | None = None
    standings: dict[str, Standing] = msgspec.field(default_factory=dict)

    def choose(self, candidates: Sequence[Candidate]) -> Recommendation:
        """The recommendation from these candidates, explained.

        Raises:
            TrialError: Nothing fits, or nothing was measured.
        """
        recommendation = choose(
            candidates,
            self.goal,
            refused_settings=self.refused_settings,
            untried=self.untried.number,
            stopped_because=self.stopped_because,
        )
        recommendation = msgspec.structs.replace(recommendation, untried_is_bound=not self.untried.exact)
        return msgspec.structs.replace(recommendation, why=tuple(explain(recommendation, self.goal)))


def confirm(
    conclusion: Conclusion,
    ledger: Ledger,
    *,
    trials: Trials,
    guard: Guard,
    budget: TimeBudget,
    progress: Progress,
    say: Callable[[str], None] | None = None,
    repeat: bool = True,
) -> tuple[Recommendation, bool]:
    """Write the winner's files, run its wrapper, and fall back to the next best if that fails.

    A winner whose wrapper does not run is recorded with what happened, so that it is never recommended.

    Args:
        conclusion: What to choose for.
        ledger: Everything that was tried; a failed confirmation replaces its candidate.
        trials: Runs the wrapper.
        guard: Compares the winner with the exact run before its wrapper is run.
        budget: The session's clock.
        progress: Told what is under way.
        say: Hears what the user should know; the progress by default.
        repeat: Whether the leaders are measured once more first, if there is time.

    Returns:
        The recommendation, its files written, confirmed unless the confirming run took too long or was ended from
        outside; and whether the user interrupted what came after the confirmation.

    Raises:
        KeyboardInterrupt: Interrupted before a confirmation ended.
        TrialError: No winner is left, or too many wrappers failed; no policy is left in the folder then.
    """
    say = say or progress.note
    failures: list[str] = []
    # Who leads after the leaders were measured again may have been measured once, and be as lucky as they were.
    rounds = max(ROUNDS, MOST_REPEATED) if conclusion.standings else ROUNDS
    for _ in range(rounds if repeat else 0):
        leading = settled(conclusion.choose, ledger, goal=conclusion.goal, guard=guard)
        if not measure_leaders_again(
            leading,
            ledger,
            goal=conclusion.goal,
            trials=trials,
            budget=budget,
            progress=progress,
            standings=conclusion.standings,
        ):
            break
    beaten = 0
    choose = conclusion.choose
    while len(failures) < _CONFIRMATIONS:
        try:
            recommendation = settled(choose, ledger, goal=conclusion.goal, guard=guard)
        except TrialError:
            if failures or beaten:  # the files are those of a policy that was not confirmed
                take_back(conclusion.folder)
            raise
        winner = recommendation.winner
        assert winner.measurement is not None
        emit(conclusion, recommendation, say)
        progress.stage(f"running the emitted wrapper in a fresh process: {_name(winner)}")
        result = _at_size_of(winner, trials).confirm(winner.policy, str(conclusion.folder.wrapper), repeat=0)
        confirmed, promise = _promise(
            result.speedup, winner, ledger.candidates, _rates_of_baseline(recommendation, trials)
        )
        confirmation = Confirmation(
            outcome=result.outcome,
            reason=result.reason,
            measurement=result.measurement,
            promised_samples_per_second=winner.measurement.samples_per_second,
            speedup=result.speedup,
            promise=promise,
            noise=_noise(winner, result.measurement),
        )
        interrupted = False
        baseline = recommendation.baseline
        # Who cannot win takes nobody's place: the answer says that the baseline is faster, and why it may not win.
        may_win = baseline is not None and why_not_eligible(baseline, conclusion.goal) is None
        reason = None
        if confirmation.promise is None:
            try:
                confirmation = _with_baseline(
                    confirmation, recommendation, ledger.candidates, trials, budget, progress, beaten=beaten
                )
                confirmation = _once_more(confirmation, winner, conclusion, trials, budget, progress)
            except KeyboardInterrupt:
                interrupted = True  # the confirmation has ended, and stands without the comparison
        if may_win and confirmed is not None:
            reason = _mark(ledger, winner, conclusion.goal, confirmed=confirmed)
        elif may_win:
            reason = _slower_than_baseline(confirmation, conclusion.goal)
            if reason is not None:
                _mark(ledger, winner, conclusion.goal, not_confirmed=reason)
        if reason is not None:
            progress.note(f"{_name(winner)}: {reason}")
            beaten += 1
            if beaten >= _CONFIRMATIONS or not budget.may_confirm_another:
                choose = partial(_choose_run_only, conclusion, recommendation.baseline, reason)
            continue
        recommendation = msgspec.structs.replace(recommendation, confirmation=confirmation)
        recommendation = explained(recommendation, conclusion.goal)
        if result.outcome is Outcome.OK and not interrupted:
            try:
                recommendation = with_time_explained(
                    recommendation, rates=conclusion.device_rates, trials=trials, budget=budget, progress=progress
                )
            except KeyboardInterrupt:
                interrupted = True
        if result.outcome is Outcome.OK or result.outcome.is_by_chance:
            # Out of time is a busy machine, not a broken policy: the search measured it. The answer says that it is
            # not confirmed, and the same command confirms it again.
            emit(conclusion, recommendation, say)
            return recommendation, interrupted
        reason = f"its wrapper, run in a fresh process, ended as {result.outcome.value}"
        if result.reason:
            reason += f": {result.reason}"
        failures.append(f"{_name(winner)}: {reason}")
        progress.note(failures[-1])
        ledger.replace(partial(_failed, winner=winner, outcome=result.outcome, reason=reason))
    take_back(conclusion.folder)
    raise NothingMeasuredError(
        f"A policy must run in a fresh process before it is recommended, but the best {_CONFIRMATIONS} did not. "
        + "; ".join(failures)
    )


def _noise(winner: Candidate, again: Measurement | None) -> float:
    """By how much two runs of the same policy may differ."""
    spreads = [one.relative_spread for one in (winner.measurement, again) if one is not None]
    return max(_APART, 2 * math.hypot(*spreads))


def _once_more(
    confirmation: Confirmation,
    winner: Candidate,
    conclusion: Conclusion,
    trials: Trials,
    budget: TimeBudget,
    progress: Progress,
) -> Confirmation:
    """Run the wrapper again where it was far from what the search had measured; the nearer of the two stands."""
    if confirmation.as_promised or confirmation.outcome is not Outcome.OK or not budget.may_confirm_another:
        return confirmation
    progress.stage(f"running the emitted wrapper once more, as it was far from its promise: {_name(winner)}")
    result = _at_size_of(winner, trials).confirm(winner.policy, str(conclusion.folder.wrapper), repeat=1)
    if result.outcome is not Outcome.OK:
        return confirmation
    again = msgspec.structs.replace(
        confirmation, measurement=result.measurement, noise=_noise(winner, result.measurement)
    )
    nearer, other = sorted((confirmation, again), key=lambda one: abs((one.kept or 0.0) / (one.drift or 1.0) - 1))
    assert other.measurement is not None, "both went well"
    return msgspec.structs.replace(nearer, other_samples_per_second=other.measurement.samples_per_second)


def _mark(ledger: Ledger, winner: Candidate, goal: Goal, **found: object) -> str | None:
    """Write down what a confirmation found of the winner's policy; why it may not win now, if it may not."""

    def marked(one: Candidate) -> Candidate:
        same = one.policy == winner.policy and one.model_size == winner.model_size
        return msgspec.structs.replace(one, **found) if same and is_measured(one) else one

    ledger.replace(marked)
    return why_not_eligible(msgspec.structs.replace(winner, **found), goal)


def _failed(candidate: Candidate, *, winner: Candidate, outcome: Outcome, reason: str) -> Candidate:
    if candidate.policy.key != winner.policy.key or candidate.model_size != winner.model_size:
        return candidate
    return msgspec.structs.replace(candidate, outcome=outcome, reason=reason)


def _slower_than_baseline(confirmation: Confirmation, goal: Goal) -> str | None:
    """Where they took no turns: that the baseline, measured again right after the winner, was no slower than it."""
    again, baseline = confirmation.measurement, confirmation.baseline_samples_per_second
    if goal.kind is not GoalKind.FASTER or again is None or baseline is None or again.samples_per_second > baseline:
        return None
    return (
        f"run again in a fresh process, its wrapper trained {format_rate(again.samples_per_second)} samples/s, and the "
        f"baseline right after it {format_rate(baseline)}"
    )


def _choose_run_only(
    conclusion: Conclusion, baseline: Candidate | None, reason: str, candidates: Sequence[Candidate]
) -> Recommendation:
    """Choose the baseline or what was confirmed, since nothing that led was and there is no time to run the others.

    That rules them out of this answer alone: the ledger knows nothing against them, and a run with more time may
    confirm one.
    """

    def ruled_out(one: Candidate) -> Candidate:
        if baseline is None or one.policy == baseline.policy or not is_measured(one):
            return one
        if one.confirmed is not None or one.not_confirmed:
            return one  # it was run itself
        return msgspec.structs.replace(
            one, not_confirmed=f"what led it was not confirmed, and no other was run: {reason}"
        )

    return conclusion.choose([ruled_out(one) for one in candidates])


def _rates_of_baseline(recommendation: Recommendation, trials: Trials) -> tuple[float, ...]:
    """The baseline's samples per second, of each time that it was measured."""
    baseline = recommendation.baseline
    if baseline is None or baseline.measurement is None:
        return ()
    return (baseline.measurement.samples_per_second, *trials.turns.rates_of(baseline.policy))


def _promise(
    found: Speedup | None, winner: Candidate, candidates: Sequence[Candidate], baseline: Sequence[float]
) -> tuple[Speedup, Speedup] | tuple[None, None]:
    """What a confirmation shows and what it promises, from every figure that took turns."""
    if found is None:
        return None, None
    figures: dict[str, list[Speedup]] = {winner.policy.key: []}
    for one in candidates:
        if one.speedup is not None and is_measured(one):
            figures.setdefault(one.policy.key, []).append(one.speedup)
    own = figures.pop(winner.policy.key)
    others = list(figures.values())
    return shown(found, own, others, baseline), promised(found, own, others, baseline)


def _with_baseline(
    confirmation: Confirmation,
    recommendation: Recommendation,
    candidates: Sequence[Candidate],
    trials: Trials,
    budget: TimeBudget,
    progress: Progress,
    *,
    beaten: int = 0,
) -> Confirmation:
    """Measure the baseline again right after the winner: a machine that slowed down meanwhile slows both.

    When the winner fell short of its promise this is done even if the time limit passes meanwhile: without it nobody
    can tell a slow machine from a wrong promise.
    """
    baseline = recommendation.baseline
    winner = recommendation.winner
    if baseline is None or (baseline.policy, baseline.model_size) == (winner.policy, winner.model_size):
        return confirmation
    if confirmation.outcome is not Outcome.OK:
        return confirmation
    kept = confirmation.kept
    as_promised = kept is not None and kept >= _KEPT
    if as_promised and budget.remaining_seconds < budget.expected_trial_seconds:
        return confirmation
    progress.stage("measuring the baseline once more, for comparison")
    # Not what an earlier repetition found, nor what stood beside an earlier winner.
    repeat = max(1, times_measured(baseline.policy, candidates)) + beaten
    again = _at_size_of(baseline, trials).time(baseline.policy, outpaced_below=None, repeat=repeat)
    if again.measurement is None:
        return confirmation
    rate = _rate(again.measurement)
    drift = rate / _rate(baseline.measurement) if baseline.measurement is not None else None
    return msgspec.structs.replace(confirmation, baseline_samples_per_second=rate, drift=drift)


def _at_size_of(candidate: Candidate, trials: Trials) -> Trials:
    return trials.at_size(candidate.model_size) if candidate.model_size else trials


def _rate(measurement: Measurement | None) -> float:
    assert measurement is not None
    return measurement.samples_per_second


def _name(candidate: Candidate) -> str:
    return Combination.of(candidate.policy).label
