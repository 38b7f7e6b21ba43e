"""Sentences that explain the choice of a size."""

from __future__ import annotations

from advisor.decide.candidate import Candidate, Growth, Recommendation, SizeOutcome
from advisor.decide.eligible import is_measured, why_not_eligible
from advisor.decide.growth import plain_among
from advisor.goal import Goal
from advisor.report.sentences import go_on
from advisor.report.wording import parameters_words, training_words
from advisor.search.space.space import Combination
from advisor.text.units import format_bytes, format_rate, format_spread
from advisor.trial.outcome import Outcome
from advisor.workload.sizes import size_words

__all__ = ["explain_size"]


def explain_size(answer: Recommendation, growth: Growth, goal: Goal) -> tuple[str, ...]:
    """Explain the choice of a size, the most important first; sentences with nothing to say are empty."""
    return (
        _what(answer.winner, growth, goal, answer.baseline),
        _against_own(answer.winner, growth),
        _against_plain(answer, growth, goal),
        _what_stops(answer, growth, goal),
        _memory(answer.winner, growth, goal),
    )


def _what(winner: Candidate, growth: Growth, goal: Goal, baseline: Candidate | None) -> str:
    floor = f"{format_rate(growth.floor_samples_per_second)} samples/s"
    share = goal.floor.share_of_baseline if goal.floor is not None else None
    if share is not None and baseline is not None:
        plainly = _plain_words(Combination.of(baseline.policy), goal)
        floor += f" ({share:g} times the {format_rate(baseline.samples_per_second)} of {plainly} at its own size)"
    trained = "trained with" if winner.policy.methods else "with"
    return (
        f"The largest size found that keeps {floor} is {size_words(winner.model_size)} with {_parameters(winner)}: "
        f"{trained} {training_words(winner)} it runs {format_rate(winner.samples_per_second)} samples/s "
        f"({format_spread(winner.measured.relative_spread)})."
    )


def _against_own(winner: Candidate, growth: Growth) -> str:
    own = growth.own_parameter_count
    if own is None or winner.parameter_count is None:
        return ""
    if winner.parameter_count == own:
        return "The model has as many parameters as at its own size."
    factor = winner.parameter_count / own
    return f"That is {factor:.2f} times the parameters of the model's own size ({parameters_words(own)})."


def _against_plain(answer: Recommendation, growth: Growth, goal: Goal) -> str:
    winner, plain = answer.winner, growth.plain
    tried = (*answer.ranking, *answer.not_measured)
    plainly = plain_among(tried)
    if Combination.of(winner.policy) == plainly:
        if not any(Combination.of(one.policy) != plainly for one in tried):
            text = "No combination of methods was tried, so this is no advice against any"
            return f"{text}: {go_on(answer)}." if answer.untried else f"{text}."
        barred = [
            (one, reason)
            for one in tried
            if is_measured(one) and one.size_order > winner.size_order
            if one.samples_per_second >= growth.floor_samples_per_second
            if (reason := why_not_eligible(one, goal)) is not None
        ]
        if barred:
            one, reason = max(barred, key=lambda pair: pair[0].size_order)
            return (
                f"{Combination.of(one.policy).words} keeps the floor up to {size_words(one.model_size)}, but may not "
                f"win: {reason.rstrip('.')}. Nothing that may win reached a larger size."
            )
        if plainly.settings:
            return "Nothing else that was tried reached a larger size."
        return "No combination of methods that was tried reached a larger size: use no method."
    words, keep = _plain_words(plainly, goal), "keep" if goal.own_settings else "keeps"
    name = words[0].upper() + words[1:]
    if plain is None:
        return f"{name} kept the floor at no size that was tried."
    if plain.size_order == winner.size_order:
        return f"{name} {keep} the floor at this size too, at {format_rate(plain.samples_per_second)} samples/s."
    return (
        f"{name} {keep} it up to {size_words(plain.model_size)} ({_parameters(plain)}, "
        f"{format_rate(plain.samples_per_second)} samples/s)."
    )


def _what_stops(answer: Recommendation, growth: Growth, goal: Goal) -> str:
    """How the winner's methods failed at the next larger size that they were tried at."""
    winner = answer.winner
    plainly = Combination.of(winner.policy) == plain_among((*answer.ranking, *answer.not_measured))
    limit = goal.limit_on(winner.policy.gpu_count)
    for row in growth.rows:
        one = row.plain if plainly else row.winner
        if one is not None and (row.parameter_count, tuple(row.model_size.values())) > winner.size_order:
            return f"At {size_words(row.model_size)} {_ended(one, limit)}."
    return "No larger size was tried with it."


def _ended(one: SizeOutcome, limit_bytes: int) -> str:
    if one.samples_per_second is not None:
        runs = f"it runs {format_rate(one.samples_per_second)} samples/s"
        return f"{runs}, but may not win: {one.reason.rstrip('.')}" if one.reason else f"{runs}, below the floor"
    if one.outcome is Outcome.SCREENED:
        return f"it was not run: {one.reason.rstrip('.')}"
    if one.outcome is Outcome.OUT_OF_MEMORY:
        return f"it does not fit below {format_bytes(limit_bytes)}"
    return f"it ended as {one.outcome.value}" + (f": {one.reason.rstrip('.')}" if one.reason else "")


def _memory(winner: Candidate, growth: Growth, goal: Goal) -> str:
    if growth.memory_per_unit is None or growth.fits_up_to is None:
        return ""
    if growth.measure == "parameter":
        per_unit = f"{format_rate(growth.memory_per_unit)} bytes"
        reach = f"{parameters_words(growth.fits_up_to)} parameters"
    else:
        per_unit, reach = format_bytes(growth.memory_per_unit), f"{format_rate(growth.fits_up_to)} {growth.measure}"
    limit = format_bytes(goal.limit_on(winner.policy.gpu_count))
    return (
        f"Predicted from profiling runs: one sample needs {per_unit} more for each {growth.measure}, so that memory "
        f"alone ({limit}) would allow up to {reach}."
    )


def _plain_words(plainly: Combination, goal: Goal) -> str:
    """The baseline: ``"plain training"``, ``"plain training (ddp on 2 devices)"``, ``"your own settings (lora)"``."""
    if goal.own_settings:
        return f"your own settings ({plainly.words})"
    return "plain training" if plainly == Combination() else f"plain training ({plainly.words})"


def _parameters(candidate: Candidate) -> str:
    return f"{parameters_words(candidate.parameter_count or 0)} parameters"
