"""Why this policy: sentences made from figures."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.drift import drift_tolerance
from advisor.decide.eligible import is_outpaced, why_not_eligible
from advisor.decide.noise import noise_between
from advisor.decide.score import gain, score
from advisor.decide.simplicity import simplicity
from advisor.measure.measurement import Measurement
from advisor.problem.goal import Fidelity, Goal
from advisor.problem.units import format_bytes, format_count, format_percent, format_rate, format_spread
from advisor.report.why_larger import explain_size
from advisor.report.wording import policy_words

__all__ = ["explain", "explained"]

_NEAR_LIMIT = 0.75
"""From this share of the limit on, memory is called the thing that stopped a larger batch."""

_FIDELITY = {
    Fidelity.EXACT: "Gradients are bit-equal to plain training's",
    Fidelity.ROUNDING: "Against plain training only the order of sums changes",
    Fidelity.PRECISION: "Against plain training the float format is lower",
    Fidelity.LOSSY: "Against plain training information is thrown away",
    Fidelity.MODEL: "Against plain training what is learned changes",
}


def explained(recommendation: Recommendation, goal: Goal) -> Recommendation:
    """The recommendation with its ``why`` filled in."""
    return msgspec.structs.replace(recommendation, why=explain(recommendation, goal))


def explain(recommendation: Recommendation, goal: Goal) -> tuple[str, ...]:
    """Explain a choice, the most important first.

    Args:
        recommendation: The choice.
        goal: What was asked for.

    Returns:
        Sentences; together they read as one paragraph.
    """
    if recommendation.growth is not None:
        larger = explain_size(recommendation, recommendation.growth, goal)
        sentences = [*larger, _fidelity(recommendation.winner), _untried(recommendation)]
        return tuple(sentence for sentence in sentences if sentence)
    sentences = [
        _what(recommendation.winner),
        _against_baseline(recommendation, goal),
        _against_hand_tuned(recommendation, goal),
        _runner_up(recommendation, goal),
        _fastest_that_may_not_win(recommendation, goal),
        _what_limits(recommendation, goal),
        _fidelity(recommendation.winner),
        _untried(recommendation),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _what(winner: Candidate) -> str:
    measured = _measurement(winner)
    early = " (an early figure: its timing was cut short)" if is_outpaced(winner) else ""
    name = _name(winner)
    subject = f"Training with {name}" if winner.policy.methods else name[0].upper() + name[1:]
    return (
        f"{subject} runs {format_rate(measured.samples_per_second)} samples/s "
        f"({format_spread(measured.relative_spread)}){early}."
    )


def _against_baseline(answer: Recommendation, goal: Goal) -> str:
    winner, baseline = answer.winner, answer.baseline
    noise = format_percent(answer.noise)
    if baseline is None:
        return _not_measured(answer, Role.BASELINE, "The baseline")
    if winner == baseline:
        fastest = _fastest_eligible(answer, goal)
        if len(answer.ranking) == 1:
            return "That is the baseline itself. Nothing else was measured, so this is no advice against anything."
        if fastest == winner:
            return "That is the baseline itself, and nothing measured was faster: use no method."
        lead = format_percent(_gain(fastest, baseline, goal))
        return (
            f"That is the baseline itself: the fastest, {_name(fastest)}, led by {lead}, inside the noise of {noise}. "
            "Use no method."
        )
    ahead = _gain(winner, baseline, goal)
    reference = f"the baseline ({_name(baseline)}: {format_rate(_rate(baseline))})"
    if answer.tie:
        return f"It ties with {reference}: {_signed(ahead)}, inside the noise of {noise}."
    if ahead >= 0:
        return f"That is {1 + ahead:.2f} times {reference}, where the noise is {noise}."
    reason = why_not_eligible(baseline, goal)
    assert reason is not None or is_outpaced(baseline), "an eligible baseline that is faster would have won"
    return f"The baseline ({_name(baseline)}) is {format_percent(_gain(baseline, winner, goal))} faster, but {reason}."


def _against_hand_tuned(answer: Recommendation, goal: Goal) -> str:
    winner, tuned = answer.winner, answer.hand_tuned
    if tuned is None:
        failed = any(one.role is Role.HAND_TUNED for one in answer.not_measured)
        return _not_measured(answer, Role.HAND_TUNED, "The hand-tuned default") if failed else ""
    if winner == tuned:
        return "It is what an experienced person would pick without measuring (the hand-tuned default)."
    ahead = _gain(winner, tuned, goal)
    noise = _noise(answer, winner, tuned)
    reference = f"the hand-tuned default ({_name(tuned)}: {format_rate(_rate(tuned))})"
    if why_not_eligible(tuned, goal) is not None and ahead < 0:
        faster = format_percent(_gain(tuned, winner, goal))
        return f"The hand-tuned default ({_name(tuned)}) is {faster} faster, but {why_not_eligible(tuned, goal)}."
    if abs(ahead) <= noise:
        return f"Against {reference} it is a tie: {_signed(ahead)}, noise {format_percent(noise)}."
    return f"It is {format_percent(ahead)} faster than {reference}."


def _runner_up(answer: Recommendation, goal: Goal) -> str:
    winner = answer.winner
    special = (winner, answer.baseline, answer.hand_tuned)
    others = [one for one in _eligible(answer, goal) if one not in special]
    if not others:
        return ""
    first = others[0]
    behind = _gain(winner, first, goal)
    noise = format_percent(_noise(answer, winner, first))
    if behind < 0:
        faster = format_percent(_gain(first, winner, goal))
        return (
            f"Faster by {faster}, inside the noise of {noise}, was {_name(first)}; "
            f"the winner {_simpler(winner, first)}."
        )
    if behind <= _noise(answer, winner, first):
        return f"The runner-up, {_name(first)}, is equal within the noise of {noise}."
    return f"The runner-up, {_name(first)}, is {format_percent(behind / (1 + behind))} slower."


def _fastest_that_may_not_win(answer: Recommendation, goal: Goal) -> str:
    first = answer.ranking[0]
    reason = why_not_eligible(first, goal)
    if reason is None or first in (answer.baseline, answer.hand_tuned) or _rate(first) <= _rate(answer.winner):
        return ""
    return f"{format_percent(_gain(first, answer.winner, goal))} faster was {_name(first)}, but {reason}."


def _what_limits(answer: Recommendation, goal: Goal) -> str:
    winner = answer.winner
    peak = _measurement(winner).memory.peak_bytes
    share = peak / goal.memory_limit_bytes
    limit = format_bytes(goal.memory_limit_bytes)
    use = f"The winner's peak of {format_bytes(peak)} is {format_percent(share)} of the {limit} limit"
    larger = [
        one
        for one in answer.ranking
        if one.policy.methods == winner.policy.methods and one.policy.micro_batch > winner.policy.micro_batch
    ]
    if larger:
        best = max(larger, key=_rate)
        change = _gain(best, winner, goal)
        word = "slower" if change < 0 else "faster"
        return f"{use}; at batch {best.policy.micro_batch} the same methods are {format_percent(abs(change))} {word}."
    if share >= _NEAR_LIMIT:
        return f"{use}: memory is what stops a larger batch."
    return f"{use}: memory is not what limits it."


def _fidelity(winner: Candidate) -> str:
    if not winner.policy.methods and winner.fidelity is Fidelity.EXACT:
        return ""
    text = _FIDELITY[winner.fidelity]
    if winner.loss_drift is None:
        return f"{text}; its loss was not compared with plain training's."
    return (
        f"{text}: its first losses differ by {format_percent(winner.loss_drift)} "
        f"({format_percent(drift_tolerance(winner.fidelity))} is tolerated)."
    )


def _untried(answer: Recommendation) -> str:
    because = answer.stopped_because.strip().rstrip(".")
    if answer.untried == 0:
        return f"The search ended because {because}." if because else ""
    count = format_count(answer.untried, "combination")
    return f"Not tried: {count} of the space, because {because}."


def _not_measured(answer: Recommendation, role: Role, name: str) -> str:
    lost = next((one for one in answer.not_measured if one.role is role), None)
    if lost is None:
        return f"{name} was not measured."
    detail = f": {lost.reason.rstrip('.')}" if lost.reason else ""
    return f"{name} ({_name(lost)}) has no figure; it ended as {lost.outcome.value}{detail}."


def _simpler(winner: Candidate, other: Candidate) -> str:
    mine, theirs = simplicity(winner), simplicity(other)
    if mine[0] != theirs[0]:
        return f"is simpler ({format_count(mine[0], 'method')} instead of {theirs[0]})"
    if mine[1] != theirs[1]:
        return f"changes less ({winner.fidelity.value} instead of {other.fidelity.value})"
    if mine[2] != theirs[2]:
        return f"needs a smaller batch ({mine[2]} instead of {theirs[2]})"
    return "is no more complicated"


def _eligible(answer: Recommendation, goal: Goal) -> list[Candidate]:
    return [one for one in answer.ranking if why_not_eligible(one, goal) is None and not is_outpaced(one)]


def _fastest_eligible(answer: Recommendation, goal: Goal) -> Candidate:
    return next(iter(_eligible(answer, goal)), answer.winner)


def _noise(answer: Recommendation, first: Candidate, second: Candidate) -> float:
    return max(answer.noise, noise_between(_measurement(first), _measurement(second)))


def _gain(candidate: Candidate, reference: Candidate, goal: Goal) -> float:
    return gain(score(_measurement(candidate), goal), score(_measurement(reference), goal), goal.kind)


def _rate(candidate: Candidate) -> float:
    return _measurement(candidate).samples_per_second


def _measurement(candidate: Candidate) -> Measurement:
    assert candidate.measurement is not None
    return candidate.measurement


def _name(candidate: Candidate) -> str:
    policy = candidate.policy
    methods = "plain training" if not policy.methods else policy_words(policy)
    passes = f" x {policy.accumulation_steps}" if policy.accumulation_steps > 1 else ""
    return f"{methods} at batch {policy.micro_batch}{passes}"


def _signed(share: float) -> str:
    return f"{'+' if share >= 0 else ''}{format_percent(share)}"
