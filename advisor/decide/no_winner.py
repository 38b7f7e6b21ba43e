"""Explain with measurements why nothing can be recommended."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.decide.candidate import Candidate
from advisor.decide.eligible import why_not_eligible
from advisor.errors import NothingFitsError, NothingMeasuredError
from advisor.goal import Goal
from advisor.search.space.space import Combination
from advisor.text.units import Rounding, format_bytes, format_count
from advisor.trial.outcome import Outcome

__all__ = ["nothing_to_choose", "nothing_to_compare_with"]

_DID_NOT_FIT = (Outcome.OUT_OF_MEMORY, Outcome.SCREENED)


def nothing_to_choose(
    ranking: Sequence[Candidate], not_measured: Sequence[Candidate], goal: Goal
) -> NothingFitsError | NothingMeasuredError:
    """The error that says why there is no winner: of the measured candidates, which may not win, or of the others."""
    if ranking:
        reasons = "; ".join(f"{_name(one)}: {why_not_eligible(one, goal)}" for one in ranking[:3])
        return NothingMeasuredError(
            f"At least one measured policy must be allowed to win, but none of {len(ranking)} is. {reasons}."
        )
    too_big = [candidate for candidate in not_measured if candidate.outcome in _DID_NOT_FIT]
    others = [candidate for candidate in not_measured if candidate.outcome not in _DID_NOT_FIT]
    if too_big:
        return NothingFitsError(_nothing_fits(too_big, others, goal))
    if others:
        first = others[0]
        detail = f": {first.reason}" if first.reason else ""
        return NothingMeasuredError(
            f"At least one policy must be measured, but none of {len(others)} was. "
            f"The first, {_name(first)}, ended as {first.outcome.value}{detail}"
        )
    return NothingMeasuredError(
        "At least one policy must be measured, but the search ended before the first was. Allow more time."
    )


def nothing_to_compare_with(plain: Candidate) -> NothingMeasuredError:
    """The error that says that plain training diverges, and what users can do about it."""
    return NothingMeasuredError(
        "Plain training's losses must stay finite in its first steps, or nothing can be compared with it, but "
        f"{plain.reason}. Make the learning rate smaller (where a schedule begins with a smaller one, build_optimizer "
        "must, too), or look for what makes the loss infinite: the logarithm of zero, a division by it, an input."
    )


def _nothing_fits(too_big: Sequence[Candidate], others: Sequence[Candidate], goal: Goal) -> str:
    limit = format_bytes(goal.memory_limit_bytes)
    text = f"At least one policy must fit below the memory limit, but none fits below {limit}"
    if goal.shares_memory and any(candidate.policy.gpu_count > 1 for candidate in too_big):
        text += ", which all processes of a policy share"
    text += ". "
    known = [candidate for candidate in too_big if candidate.predicted_peak_bytes is not None]
    if known:
        closest = min(known, key=lambda candidate: (_need(candidate, goal), _name(candidate)))
        count = closest.policy.gpu_count
        samples = format_count(closest.policy.micro_batch, "sample")
        each = f" for each of {count} processes" if goal.shares_memory and count > 1 else ""
        raised = format_bytes(_need(closest, goal), Rounding.UP) if each else "that"
        text += (
            f"The smallest need is {format_bytes(closest.predicted_peak_bytes or 0, Rounding.UP)}{each} (predicted), "
            f"by {_name(closest)} with {samples} per pass. Raise --memory-limit above {raised}, or allow more methods."
        )
    else:
        tried = ", ".join(dict.fromkeys(_name(candidate) for candidate in too_big))
        text += f"Not even the smallest batch ran with: {tried}. Raise --memory-limit, or allow more methods."
    if others:
        ends = ", ".join(dict.fromkeys(f"{_name(one)} ended as {one.outcome.value}" for one in others))
        text += f" Besides, {ends}."
    return text


def _need(candidate: Candidate, goal: Goal) -> int:
    """The memory limit that it is predicted to need, for all of its processes if they share it."""
    peak = candidate.predicted_peak_bytes or 0
    return peak * candidate.policy.gpu_count if goal.shares_memory else peak


def _name(candidate: Candidate) -> str:
    return Combination.of(candidate.policy).words
