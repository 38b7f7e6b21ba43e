"""Sentences that explain the choice of a point of the cost-latency frontier."""

from __future__ import annotations

from advisor.decide.candidate import Candidate, FrontierPoint, Recommendation, Role
from advisor.decide.cost import cost_of
from advisor.decide.eligible import why_not_eligible
from advisor.decide.preference import limit_of
from advisor.goal import Goal, Preference
from advisor.report.points import ITERATIONS
from advisor.report.sentences import (
    fidelity_sentence,
    hand_tuned_sentence,
    measured_nothing_else,
    not_measured_sentence,
    nothing_else_sentence,
    untried_sentence,
)
from advisor.report.wording import (
    baseline_words,
    early_words,
    peak_words,
    price_words,
    subject_words,
    training_words,
)
from advisor.text.units import (
    format_count,
    format_duration,
    format_joules,
    format_percent,
    format_seconds,
    format_spread,
    format_usd,
)

__all__ = ["explain_cheapest"]

_ALTERNATIVES = 3


def explain_cheapest(recommendation: Recommendation, goal: Goal) -> tuple[str, ...]:
    """Explain a pick, the most important first, in sentences that together read as one paragraph."""
    sentences = [
        _what(recommendation.winner, goal),
        _why_this_point(recommendation, goal.preference),
        *_alternatives(recommendation),
        _against_baseline(recommendation, goal),
        _against_hand_tuned(recommendation, goal),
        _whole_run(recommendation.winner, goal),
        _energy(recommendation, goal),
        f"Its {peak_words(recommendation.winner, goal)}.",
        fidelity_sentence(recommendation.winner),
        untried_sentence(recommendation),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _what(winner: Candidate, goal: Goal) -> str:
    measured, price = winner.measured, goal.price
    assert price is not None
    return (
        f"{subject_words(winner)} takes {format_seconds(measured.step_seconds)} "
        f"({format_spread(measured.relative_spread)}) per iteration{early_words(winner)} and costs "
        f"{_dollars(cost_of(winner, goal).cost_usd)} at {price_words(price)}."
    )


def _why_this_point(answer: Recommendation, preference: Preference) -> str:
    frontier = answer.frontier
    assert frontier is not None
    limit = limit_of(preference)
    if limit is not None:
        return f"It is the {'fastest' if limit.verb == 'cost' else 'cheapest'} that {limit.verb}s {limit.words}."
    if len(frontier.points) == 1:
        return "Nothing measured that may win is cheaper or faster beyond the noise."
    return "It is the knee of the frontier, where cost x latency is least; --max-latency or --max-cost picks another."


def _alternatives(answer: Recommendation) -> list[str]:
    """The trade-offs of the other points, the nearest first."""
    frontier = answer.frontier
    assert frontier is not None
    candidates = {one.policy.key: one for one in answer.ranking}
    picked = frontier.points[frontier.pick]
    nearest = sorted(enumerate(frontier.points), key=lambda one: abs(one[0] - frontier.pick))
    return [
        f"{_trade(point, picked)}: {training_words(candidates[point.policy.key])}."
        for _, point in nearest[1 : 1 + _ALTERNATIVES]
    ]


def _trade(other: FrontierPoint, picked: FrontierPoint) -> str:
    if other.latency_seconds < picked.latency_seconds:
        faster = picked.latency_seconds / other.latency_seconds
        return f"{faster:.2f} times as fast for {other.cost_usd / picked.cost_usd:.2f} times the cost"
    slower = other.latency_seconds / picked.latency_seconds
    return f"{format_percent(1 - other.cost_usd / picked.cost_usd)} cheaper but {slower:.2f} times as long"


def _against_baseline(answer: Recommendation, goal: Goal) -> str:
    winner, baseline = answer.winner, answer.baseline
    if baseline is None:
        return not_measured_sentence(answer, Role.BASELINE, "The baseline")
    if winner == baseline:
        if measured_nothing_else(answer):
            return nothing_else_sentence(answer)
        noise = f"; what measured better did so inside the noise of {format_percent(answer.noise)}"
        return f"The pick is the baseline itself{noise if answer.tie else ''}."
    if answer.tie:
        return (
            f"It ties with the baseline ({_measured_words(baseline, goal)}) in both cost and latency: the noise is "
            f"{format_percent(answer.noise)}."
        )
    return f"{_compared(winner, baseline, goal, 'the baseline')}."


def _against_hand_tuned(answer: Recommendation, goal: Goal) -> str:
    winner, tuned = answer.winner, answer.hand_tuned
    if tuned is None or tuned == winner:
        return hand_tuned_sentence(answer)
    reason = why_not_eligible(tuned, goal)
    may_not = f"; that may not win: {reason}" if reason else ""
    return f"{_compared(winner, tuned, goal, 'the hand-tuned default')}{may_not}."


def _compared(winner: Candidate, other: Candidate, goal: Goal, name: str) -> str:
    mine, theirs = cost_of(winner, goal), cost_of(other, goal)
    faster = theirs.latency_seconds / mine.latency_seconds
    time = f"is {faster:.2f} times as fast" if faster >= 1 else f"takes {1 / faster:.2f} times as long"
    change = mine.cost_usd / theirs.cost_usd - 1
    cost = f"costs {format_percent(abs(change))} {'more' if change > 0 else 'less'}" if change else "costs as much"
    return f"Against {name} ({_measured_words(other, goal)}) it {time} and {cost}"


def _whole_run(winner: Candidate, goal: Goal) -> str:
    iterations = goal.preference.iterations
    if iterations is None:
        return ""
    one = cost_of(winner, goal)
    time, cost = format_duration(one.latency_seconds * iterations), format_usd(one.cost_usd * iterations)
    return f"{format_count(iterations, 'iteration')} take {time} and cost {cost}."


def _energy(answer: Recommendation, goal: Goal) -> str:
    """The energy, if it was measured."""
    cost, frontier = cost_of(answer.winner, goal), answer.frontier
    assert frontier is not None
    if cost.joules is None:
        return ""
    text = f"Its energy is {format_joules(cost.joules)} per iteration"
    if cost.energy_usd is not None:
        assert goal.usd_per_kilowatt_hour is not None
        rate = format_usd(goal.usd_per_kilowatt_hour)
        text += f": {_dollars(cost.energy_usd)} at {rate} per kWh, which is not part of the price above"
    points = [point for point in frontier.points if point.joules is not None]
    least = min(points, key=lambda point: point.joules or 0.0, default=None)
    if least is not None and least.policy != answer.winner.policy:
        number = frontier.points.index(least) + 1
        text += f"; the least on the frontier is {format_joules(least.joules or 0.0)}, by point {number}"
    return f"{text}."


def _measured_words(candidate: Candidate, goal: Goal) -> str:
    cost = cost_of(candidate, goal)
    words = baseline_words(candidate, goal) if candidate.role is Role.BASELINE else training_words(candidate)
    return f"{words}: {format_seconds(cost.latency_seconds)}, {_dollars(cost.cost_usd)}"


def _dollars(usd_per_iteration: float) -> str:
    return f"{format_usd(usd_per_iteration * ITERATIONS)} per {ITERATIONS} iterations"
