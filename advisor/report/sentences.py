"""Sentences that the reasons for every goal share."""

from __future__ import annotations

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.drift import drift_tolerance
from advisor.goal import Fidelity
from advisor.report.comparison import comparison_sentence
from advisor.report.wording import training_words
from advisor.search.space.space import Combination
from advisor.text.units import format_count, format_many, format_percent
from advisor.trial.outcome import Outcome

__all__ = [
    "compared_sentence",
    "fidelity_sentence",
    "go_on",
    "hand_tuned_sentence",
    "measured_methods",
    "measured_nothing_else",
    "measured_too_little",
    "not_measured_sentence",
    "nothing_else_sentence",
    "untried_sentence",
]

_FIDELITY = {
    Fidelity.EXACT: "Gradients are bit-equal to plain training's",
    Fidelity.ROUNDING: "Against plain training only the order of sums changes",
    Fidelity.PRECISION: "Against plain training the float format is lower",
    Fidelity.LOSSY: "Against plain training information is thrown away",
    Fidelity.MODEL: "Against plain training what is learned changes",
}


_TOO_FEW = 3
"""So many combinations say nothing about methods: of what they change (what blocks keep, number formats, the optimizer,
the shape of the step) at least one was not even seen."""


EXPECTED_GAIN = "the best of them is expected to be"
UNKNOWN_GAIN = "too little was measured to tell what they may bring"
"""What ends the reason for which a search stopped before its end: what more time may bring."""


def go_on(answer: Recommendation) -> str:
    """What to do where too little was measured, by what ended the search."""
    because = answer.stopped_because
    if "SIZES" in because:
        return "list larger values in SIZES to go on"
    more = " with a longer --time-limit"
    if "interrupted" in because:
        more = ""
    elif because.startswith("the limit of"):
        more = " with more --trials"
    return f"run the same command{more} to continue"


def fidelity_sentence(winner: Candidate) -> str:
    """How far its training is from plain training; empty for plain training itself."""
    if not winner.policy.methods and winner.fidelity is Fidelity.EXACT:
        return ""
    text, compared = _FIDELITY[winner.fidelity], comparison_sentence(winner)
    if winner.guard is None and winner.loss_drift is not None:
        drift, tolerated = format_percent(winner.loss_drift), format_percent(drift_tolerance(winner.fidelity))
        text += f": its first losses differ by {drift} ({tolerated} is tolerated)"
    elif not compared:
        text += "; its loss was not compared with plain training's"
    return f"{text}. {compared}".rstrip()


def compared_sentence(answer: Recommendation) -> str:
    """How many combinations were compared by short steps and how many were timed; empty if none was compared."""
    compared = {_label(one): one.comparison for one in answer.not_measured if one.outcome is Outcome.COMPARED}
    timed = {_label(one) for one in answer.ranking}
    known = {*compared, *timed, *(_label(one) for one in answer.ranking if one.comparison is not None)}
    if not any(one.comparison is not None for one in (*answer.ranking, *answer.not_measured)) or len(known) < 2:
        return ""
    in_turn = {_label(one) for one in answer.ranking if one.speedup is not None}
    turns = "in turn with the baseline or a faster combination" if in_turn else "not in turn with anything"
    if in_turn and any(_label(one) not in in_turn and one.role is not Role.BASELINE for one in answer.ranking):
        turns = f"some {turns}"
    head = f"{format_count(len(known), 'combination')} of methods were compared"
    if len(timed) == len(known):
        return f"{head}, all of them timed at length, {turns}."
    short = {name: one for name, one in compared.items() if name not in timed}
    alone = sum(one is None or one.speedup is None for one in short.values())
    others = "by short steps in turn"
    if alone == len(short):
        others = "by short steps of their own"
    elif alone:
        others += f", or ({alone} of them) by short steps of their own"
    return f"{head}: {len(timed)} of them timed at length, {turns}, the others {others}."


def _label(candidate: Candidate) -> str:
    return Combination.of(candidate.policy).label


def untried_sentence(answer: Recommendation) -> str:
    """How many combinations were not tried, or else why the search ended."""
    because = answer.stopped_because.strip().rstrip(".")
    if answer.untried == 0:
        return f"The search ended because {because}." if because else ""
    count = format_many(answer.untried, "combination", at_least=answer.untried_is_bound)
    text = f"Not tried: {count} of the space, because {because}."
    said = measured_too_little(answer) or measured_nothing_else(answer)  # beside the baseline, which won
    if said or (EXPECTED_GAIN not in because and UNKNOWN_GAIN not in because):
        return text
    more = go_on(answer)
    return f"{text} {more[0].upper()}{more[1:]}."


def measured_too_little(answer: Recommendation) -> bool:
    """Whether plain training won because hardly any of many combinations was measured."""
    return not answer.winner.policy.methods and answer.untried > 0 and len(measured_methods(answer)) <= _TOO_FEW


def measured_nothing_else(answer: Recommendation) -> bool:
    """Whether nothing beside the winner was timed, nor compared."""
    return len(answer.ranking) == 1 and measured_methods(answer) <= {_label(answer.winner)}


def nothing_else_sentence(answer: Recommendation) -> str:
    """The baseline won because nothing else was measured, why, and what to do about that."""
    advice = "so this is no advice against anything"
    failed = [one for one in answer.not_measured if one.outcome is not Outcome.COMPARED]
    if failed:
        first, count = failed[0], len(failed)
        detail = f": {first.reason.rstrip('.')}" if first.reason else ""
        others = (
            "The only other that was tried" if count == 1 else f"None of {count} others could be measured: the first"
        )
        return (
            f"That is the baseline itself. {others}, {training_words(first)}, ended as {first.outcome.value}{detail}; "
            f"{advice}."
        )
    text = f"That is the baseline itself. Nothing else was measured, {advice}"
    return f"{text}: {go_on(answer)}." if answer.untried else f"{text}."


def measured_methods(answer: Recommendation) -> set[str]:
    """The combinations of methods that were timed or compared, at any batch and on any number of devices."""
    known = (*answer.ranking, *(one for one in answer.not_measured if one.outcome is Outcome.COMPARED))
    return {_label(one) for one in known if Combination.of(one.policy).settings}


def hand_tuned_sentence(answer: Recommendation) -> str:
    """A sentence about the hand-tuned default if it won or was not measured."""
    if answer.hand_tuned is not None:
        return "It is what an experienced person would pick without measuring (the hand-tuned default)."
    failed = any(one.role is Role.HAND_TUNED for one in answer.not_measured)
    return not_measured_sentence(answer, Role.HAND_TUNED, "The hand-tuned default") if failed else ""


def not_measured_sentence(answer: Recommendation, role: Role, name: str) -> str:
    """Why a setting that everything is compared with was not measured."""
    lost = next((one for one in answer.not_measured if one.role is role), None)
    if lost is None:
        return f"{name} was not measured."
    detail = f": {lost.reason.rstrip('.')}" if lost.reason else ""
    return f"{name} ({training_words(lost)}) has no measurement; it ended as {lost.outcome.value}{detail}."
