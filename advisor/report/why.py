"""Sentences that explain the choice of a policy with measurements."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.eligible import is_outpaced, why_not_eligible
from advisor.decide.noise import won_in_short_steps
from advisor.decide.ranking import noise_of_lead, simplicity
from advisor.decide.score import gain, score
from advisor.goal import Goal, GoalKind
from advisor.measure.measurement import Measurement
from advisor.methods.catalogue import get_method
from advisor.report.sentences import (
    compared_sentence,
    fidelity_sentence,
    go_on,
    hand_tuned_sentence,
    measured_methods,
    measured_nothing_else,
    measured_too_little,
    not_measured_sentence,
    nothing_else_sentence,
    untried_sentence,
)
from advisor.report.why_cheapest import explain_cheapest
from advisor.report.why_larger import explain_size
from advisor.report.wording import (
    baseline_words,
    batch_words,
    early_words,
    gain_words,
    peak_words,
    promised_times,
    subject_words,
    training_words,
)
from advisor.search.space.space import Combination
from advisor.text.units import (
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
    format_spread,
    format_times,
    format_times_spread,
)

__all__ = ["baseline_itself", "explain", "explained"]

_NEAR_LIMIT = 0.75
"""From this share of the limit on, memory is said to limit the batch."""


def explained(recommendation: Recommendation, goal: Goal) -> Recommendation:
    """The recommendation with its ``why`` filled in."""
    return msgspec.structs.replace(recommendation, why=explain(recommendation, goal))


def explain(recommendation: Recommendation, goal: Goal) -> tuple[str, ...]:
    """Explain a choice, the most important first, in sentences that together read as one paragraph."""
    if goal.kind is GoalKind.CHEAPEST:
        return explain_cheapest(recommendation, goal)
    if recommendation.growth is not None:
        larger = explain_size(recommendation, recommendation.growth, goal)
        sentences = [*larger, fidelity_sentence(recommendation.winner), untried_sentence(recommendation)]
        return tuple(sentence for sentence in sentences if sentence)
    sentences = [
        *_speed(recommendation, goal),
        _without_stalls(recommendation),
        _larger_batch(recommendation),
        _against_hand_tuned(recommendation, goal),
        _runner_up(recommendation, goal),
        _fastest_that_may_not_win(recommendation, goal),
        _what_limits(recommendation, goal),
        *(get_method(setting.name).rests_on for setting in recommendation.winner.policy.methods),
        fidelity_sentence(recommendation.winner),
        compared_sentence(recommendation),
        untried_sentence(recommendation),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _promise(answer: Recommendation, goal: Goal) -> tuple[str, str]:
    """The winner's throughput; once the baseline ran beside it or after it, its speedup."""
    promise = None if answer.confirmation is None else answer.confirmation.promise
    baseline = answer.baseline
    if promise is None or baseline is None:
        return _what(answer.winner), _against_baseline(answer, goal)
    rate = baseline.samples_per_second
    spread = format_times_spread(promise.low, promise.high, promise.value)
    ends = f"; it was {spread}" if promise.is_unsteady else f", {spread}"
    how = "one after the other"
    if answer.confirmation is not None and answer.confirmation.speedup is not None:
        beside = answer.confirmation.around_stalls if answer.confirmation.speedup.links else ""
        how = f"in turn with a baseline with {beside}" if beside else "in turn with it"
    first = (
        f"{subject_words(answer.winner)} is {promised_times(promise)} as fast as the baseline{ends} "
        f"({baseline_words(baseline, goal)}), {how} in fresh processes."
    )
    if promise.is_unsteady:
        return first, ""
    return (
        first,
        f"At the speed the machine had for the baseline, that is {format_rate(promise.value * rate)} samples/s "
        f"instead of {format_rate(rate)}.",
    )


def _without_stalls(answer: Recommendation) -> str:
    """What the speedup comes to once nothing that may be otherwise next time slows the baseline down."""
    confirmation = answer.confirmation
    if confirmation is None:
        return ""
    found, over_it = confirmation.without_stalls, ""
    if found is not None:
        spread = format_times_spread(found.low, found.high, found.value)
        over_it = f", and over it the speedup is {format_times(found.value)}, {spread}"
    if confirmation.page_faults:
        least, most = round(min(confirmation.page_faults)), round(max(confirmation.page_faults))
        steadier = f"A baseline with {confirmation.around_stalls}" if found is not None else "The winner"
        return (
            f"The baseline's speed differs from process to process: a step takes {least:,} to {most:,} pages of "
            f"memory from the system, depending on where its blocks happen to lie. {steadier} takes none{over_it}."
        )
    if found is None:
        return ""
    return (
        f"Other processes slow the baseline down, now more and now less. A baseline with {confirmation.around_stalls} "
        f"gets around that{over_it}."
    )


def _speed(answer: Recommendation, goal: Goal) -> tuple[str, ...]:
    """The speed that training will see: if it waits for its data, that comes before the speed of steps alone."""
    first, second = _promise(answer, goal)
    waits = _data_bound(answer)
    if not waits:
        return first, second
    return waits, f"Where batches arrive in time, {first[0].lower()}{first[1:]}", second


def _data_bound(answer: Recommendation) -> str:
    """The speed of a whole step if making a batch takes longer than training on it."""
    own = answer.winner.measured
    if own.making_seconds <= own.step_seconds:
        return ""
    making, samples = format_seconds(own.making_seconds), format_count(answer.winner.policy.global_batch, "sample")
    longer = f"make_batch takes {making} for {samples}, longer than the step itself"
    whole = _whole_rate(own)
    subject, baseline = subject_words(answer.winner), answer.baseline
    if baseline is None or baseline.policy == answer.winner.policy or baseline.measured.making_seconds <= 0:
        return f"{subject} does {format_rate(whole)} samples/s when it waits for its data, the bottleneck: {longer}."
    times = format_times(whole / _whole_rate(baseline.measured))
    return (
        f"{subject} is {times} as fast as the baseline when both wait for their data, the bottleneck: {longer}. "
        "More loader workers help, methods do not."
    )


def _whole_rate(measured: Measurement) -> float:
    samples = measured.samples_per_second * measured.step_seconds
    return samples / (measured.step_seconds + measured.making_seconds)


def _larger_batch(answer: Recommendation) -> str:
    """What a batch above the user's own changes: no measurement here shows how well it learns."""
    samples = answer.winner.policy.global_batch
    if answer.baseline is None or samples <= (own := answer.baseline.policy.global_batch):
        return ""
    return (
        f"A step has {samples:,} samples instead of {own:,}: choose a new learning rate (a summed loss grows with the "
        f"batch), or keep the step's size with --global-batch {own}."
    )


def _what(winner: Candidate) -> str:
    measured = winner.measured
    return (
        f"{subject_words(winner)} runs {format_rate(measured.samples_per_second)} samples/s "
        f"({format_spread(measured.relative_spread)}){early_words(winner)}."
    )


def _against_baseline(answer: Recommendation, goal: Goal) -> str:
    winner, baseline = answer.winner, answer.baseline
    noise = format_percent(answer.noise)
    if baseline is None:
        return not_measured_sentence(answer, Role.BASELINE, "The baseline")
    if winner == baseline:
        return baseline_itself(answer, goal)
    ahead = _gain(winner, baseline, goal)
    reference = f"the baseline ({baseline_words(baseline, goal)}: {format_rate(baseline.samples_per_second)})"
    if answer.tie:
        return f"It ties with {reference}: {gain_words(ahead)}, inside the noise of {noise}."
    if ahead >= 0:
        return f"That is {format_times(1 + ahead)} {reference}, where the noise is {noise}."
    reason = why_not_eligible(baseline, goal)
    assert reason is not None or is_outpaced(baseline), "an eligible baseline that is faster would have won"
    lead = format_percent(_gain(baseline, winner, goal))
    return f"The baseline ({baseline_words(baseline, goal)}) is {lead} faster, but {reason}."


def baseline_itself(answer: Recommendation, goal: Goal) -> str:
    """What it means that the baseline won."""
    if measured_nothing_else(answer):
        return nothing_else_sentence(answer)
    own = goal.own_settings
    text = f"That is the baseline itself{', your own settings' if own else ''}"
    advice, fastest = "keep them" if own else "use no method", _fastest_eligible(answer, goal)
    if measured_too_little(answer):
        others = len(measured_methods(answer))
        were = "was" if others == 1 else "were"
        known = f"only {format_count(others, 'combination')} of methods {were} measured" if others else "no method was"
        return f"{text}, but {known} beside it: too few to know whether one helps; {go_on(answer)}."
    failed = [one for one in answer.not_measured if one.measurement is not None]  # their wrappers did
    lost = next((one for one in failed if _gain(one, answer.winner, goal) > answer.noise), None)
    if fastest == answer.winner and lost is not None:
        lead = f"{training_words(lost)} was faster in the search, but {lost.reason.rstrip('.')}"
        return f"{text}: {lead}. Keep what you have."
    if fastest == answer.winner and _unconfirmed(answer, goal):
        more = f", or {go_on(answer)} when the machine is idle" if answer.untried else ""
        return (
            f"{text}: what led during the search showed no gain beyond the noise when it was confirmed. Keep what you "
            f"have{more}."
        )
    if fastest == answer.winner:
        return f"{text}, and nothing measured was faster: {advice}."
    lead, noise = format_percent(_gain(fastest, answer.winner, goal)), format_percent(answer.noise)
    fastest_words = training_words(fastest)
    return f"{text}: the fastest, {fastest_words}, led by {lead}, inside the noise of {noise}. {advice.capitalize()}."


def _unconfirmed(answer: Recommendation, goal: Goal) -> bool:
    """Whether a policy measured faster than the winner but its confirmation did not show it."""
    return any(
        (one.confirmed is not None or bool(one.not_confirmed)) and _gain(one, answer.winner, goal) > answer.noise
        for one in answer.ranking
        if one.policy != answer.winner.policy
    )


def _against_hand_tuned(answer: Recommendation, goal: Goal) -> str:
    winner, tuned = answer.winner, answer.hand_tuned
    if tuned is None or tuned == winner:
        return hand_tuned_sentence(answer)
    ahead, noise = _gain(winner, tuned, goal), noise_of_lead(winner, tuned, answer.repeats)
    # A measurement of the search does not compare with one of a confirmation at another time.
    confirmed = answer.confirmation is not None and answer.confirmation.promise is not None
    rate = "" if confirmed else f": {format_rate(tuned.samples_per_second)}"
    reference = f"the hand-tuned default ({training_words(tuned)}{rate})"
    reason = why_not_eligible(tuned, goal)
    if reason is not None and ahead < 0:
        faster = format_percent(_gain(tuned, winner, goal))
        return f"The hand-tuned default ({training_words(tuned)}) is {faster} faster, but {reason}."
    if abs(ahead) <= noise:
        tie = f"Against {reference} it is a tie: {gain_words(ahead)}, noise {format_percent(noise)}"
        won = won_in_short_steps(winner, tuned, answer.not_measured)
        if won is None:
            return f"{tie}."
        faster = format_percent(won.speedup.value - 1)
        return f"{tie}; in short steps in turn at micro-batch {won.micro_batch:,} it was {faster} faster."
    if ahead < 0:
        return f"It is {format_percent(-ahead)} slower than {reference}."
    return f"It is {format_percent(ahead)} faster than {reference}."


def _runner_up(answer: Recommendation, goal: Goal) -> str:
    winner = answer.winner
    special = (winner, answer.baseline, answer.hand_tuned)
    others = [one for one in _eligible(answer, goal) if one not in special]
    if not others:
        return ""
    first = others[0]
    behind, noise = _gain(winner, first, goal), noise_of_lead(winner, first, answer.repeats)
    if behind < 0:
        if winner == answer.baseline and first == _fastest_eligible(answer, goal):
            return ""  # said of the baseline already
        faster = format_percent(_gain(first, winner, goal))
        return (
            f"Faster by {faster}, inside the noise of {format_percent(noise)}, was {training_words(first)}; "
            f"the winner {_simpler(winner, first, answer.baseline)}."
        )
    if behind <= noise and not first.loses_to_larger_batch:
        within = f"The runner-up, {training_words(first)}, is equal within the noise of {format_percent(noise)}"
        won = won_in_short_steps(winner, first, answer.not_measured)
        if won is None:
            return f"{within}."
        slower = format_percent(1 - 1 / won.speedup.value)
        return f"{within}; in short steps in turn at micro-batch {won.micro_batch:,} it was {slower} slower."
    return f"The runner-up, {training_words(first)}, is {format_percent(behind / (1 + behind))} slower."


def _fastest_that_may_not_win(answer: Recommendation, goal: Goal) -> str:
    first = answer.ranking[0]
    reason, faster = why_not_eligible(first, goal), _gain(first, answer.winner, goal)
    if reason is None or first in (answer.baseline, answer.hand_tuned) or faster <= 0:
        return ""
    return f"{format_percent(faster)} faster was {training_words(first)}, but {reason}."


def _what_limits(answer: Recommendation, goal: Goal) -> str:
    winner, memory = answer.winner, answer.winner.measured.memory
    share = memory.peak_bytes / goal.limit_on(winner.policy.gpu_count)
    peak = f"The winner's {peak_words(winner, goal)}"
    if memory.peak_resident_bytes is not None:
        peak += f" (its process held {format_bytes(memory.peak_resident_bytes)}, libraries included)"
    own = Combination.of(winner.policy)
    same = (one for one in answer.ranking if Combination.of(one.policy) == own)
    larger = (one for one in same if one.policy.micro_batch > winner.policy.micro_batch)
    best = max(larger, key=lambda one: one.samples_per_second, default=None)
    if best is not None:
        change = _gain(best, winner, goal)
        word = "slower" if change < 0 else "faster"
        batch = batch_words(best.policy)
        return f"{peak}; at batch {batch} the same methods are {format_percent(abs(change))} {word}."
    return f"{peak}: memory {'limits' if share >= _NEAR_LIMIT else 'does not limit'} the batch."


def _simpler(winner: Candidate, other: Candidate, baseline: Candidate | None) -> str:
    """What decided between two that tie, as :func:`advisor.decide.choose.choose` does."""
    own_batch = 0 if baseline is None else baseline.policy.global_batch
    if other.policy.global_batch < own_batch <= winner.policy.global_batch:
        return f"needs no smaller batch than the baseline's ({other.policy.global_batch} instead of {own_batch})"
    mine, theirs = simplicity(winner), simplicity(other)
    if theirs < mine:
        return "was not ruled out by alternating steps"
    reasons = (
        f"is simpler ({format_count(mine[0], 'method')} instead of {theirs[0]})",
        f"changes less ({winner.fidelity.value} instead of {other.fidelity.value})",
        f"needs fewer devices ({mine[2]} instead of {theirs[2]})",
        f"needs a smaller batch ({mine[3]} instead of {theirs[3]})",
    )
    found = (reason for reason, own, its in zip(reasons, mine, theirs, strict=False) if own != its)
    return next(found, "is no more complicated")


def _eligible(answer: Recommendation, goal: Goal) -> list[Candidate]:
    return [one for one in answer.ranking if why_not_eligible(one, goal) is None and not is_outpaced(one)]


def _fastest_eligible(answer: Recommendation, goal: Goal) -> Candidate:
    return next(iter(_eligible(answer, goal)), answer.winner)


def _gain(candidate: Candidate, reference: Candidate, goal: Goal) -> float:
    return gain(score(candidate, goal), score(reference, goal), goal.kind)
