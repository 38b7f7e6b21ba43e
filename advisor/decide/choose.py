"""Choose the policy to train with among everything that was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.eligible import is_measured, is_outpaced, why_not_eligible
from advisor.decide.largest import choose_largest
from advisor.decide.noise import SMALLEST_NOISE, noise_between, repeat_noise
from advisor.decide.score import gain, maximizes, score
from advisor.decide.simplicity import simplicity
from advisor.errors import NothingFitsError, NothingMeasuredError
from advisor.measure.measurement import Measurement
from advisor.problem.goal import Goal, GoalKind
from advisor.problem.units import format_bytes, format_count
from advisor.trial.outcome import Outcome

__all__ = ["choose", "simplicity"]

_ROLE_ORDER = (Role.BASELINE, Role.HAND_TUNED, Role.SEARCHED)
_DID_NOT_FIT = (Outcome.OUT_OF_MEMORY, Outcome.SCREENED)


def choose(
    candidates: Sequence[Candidate],
    goal: Goal,
    *,
    refused_settings: Mapping[str, str],
    untried: int,
    stopped_because: str,
) -> Recommendation:
    """Rank what was measured and pick the winner.

    The fastest eligible candidate wins, unless a simpler one is so close that the difference may be chance: then
    the simplest of those wins. Candidates of the same policy are repetitions: the one with the median score stands
    for them, and their spread counts as noise. A measurement that was ended early because it was outpaced cannot
    win while there is another.

    Args:
        candidates: Everything that was tried, in the order of trying.
        goal: The goal.
        refused_settings: Method setting -> reason, for settings that no policy could use here.
        untried: How many combinations were not tried.
        stopped_because: Why the search ended.

    Returns:
        The recommendation; its ``why`` is empty until the report explains it.

    Raises:
        NothingFitsError: No policy fits below the memory limit.
        FloorNotMetError: ``bigger``: no size keeps the floor.
        NothingMeasuredError: No policy could be measured, or none of those measured may win.
    """
    if goal.kind is GoalKind.BIGGER and any(is_measured(candidate) for candidate in candidates):
        return choose_largest(
            candidates, goal, refused_settings=refused_settings, untried=untried, stopped_because=stopped_because
        )
    groups = _by_policy([candidate for candidate in candidates if is_measured(candidate)])
    ranking = sorted(
        (_representative(group, goal) for group in groups),
        key=lambda candidate: _score(candidate, goal),
        reverse=maximizes(goal.kind),
    )
    not_measured = tuple(candidate for candidate in candidates if not is_measured(candidate))
    eligible = [candidate for candidate in ranking if why_not_eligible(candidate, goal) is None]
    if not eligible:
        raise _nothing_to_choose(ranking, not_measured, goal)
    finished = [candidate for candidate in eligible if not is_outpaced(candidate)] or eligible

    repeats = repeat_noise([_measurement(candidate) for candidate in group] for group in groups)
    best = finished[0]

    floor = next((_score(one, goal) for one in eligible if one.role is Role.BASELINE), None)

    def ties_with_best(candidate: Candidate) -> bool:
        if floor is not None and gain(_score(candidate, goal), floor, goal.kind) < 0:
            return False  # a wide interval reaches far: what measured below the user's own setting is no advice
        lead = gain(_score(best, goal), _score(candidate, goal), goal.kind)
        return lead <= noise_between(_measurement(best), _measurement(candidate), repeats)

    winner = min((candidate for candidate in finished if ties_with_best(candidate)), key=simplicity)
    baseline = next((candidate for candidate in ranking if candidate.role is Role.BASELINE), None)
    noise, tie = max(SMALLEST_NOISE, repeats), False
    if baseline is not None:
        # When the baseline wins a tie, the figure that matters is its distance from the fastest.
        against = best if winner is baseline else winner
        noise = noise_between(_measurement(against), _measurement(baseline), repeats)
        ahead = gain(_score(against, goal), _score(baseline, goal), goal.kind)
        tie = against is not baseline and abs(ahead) <= noise
    return Recommendation(
        winner=winner,
        baseline=baseline,
        hand_tuned=next((candidate for candidate in ranking if candidate.role is Role.HAND_TUNED), None),
        ranking=tuple(ranking),
        not_measured=not_measured,
        refused_settings=dict(refused_settings),
        tie=tie,
        noise=noise,
        why=(),
        untried=untried,
        stopped_because=stopped_because,
    )


def _by_policy(measured: Sequence[Candidate]) -> list[list[Candidate]]:
    groups: dict[str, list[Candidate]] = {}
    for candidate in measured:
        groups.setdefault(candidate.policy.key, []).append(candidate)
    return list(groups.values())


def _representative(group: Sequence[Candidate], goal: Goal) -> Candidate:
    """The repetition with the median score, in the most telling role that any of them had."""
    finished = [candidate for candidate in group if not is_outpaced(candidate)] or group
    ordered = sorted(finished, key=lambda candidate: _score(candidate, goal))
    middle = ordered[(len(ordered) - 1) // 2]
    role = min((candidate.role for candidate in group), key=_ROLE_ORDER.index)
    return msgspec.structs.replace(middle, role=role)


def _measurement(candidate: Candidate) -> Measurement:
    assert candidate.measurement is not None
    return candidate.measurement


def _score(candidate: Candidate, goal: Goal) -> float:
    return score(_measurement(candidate), goal)


def _nothing_to_choose(
    ranking: Sequence[Candidate], not_measured: Sequence[Candidate], goal: Goal
) -> NothingFitsError | NothingMeasuredError:
    if ranking:
        reasons = "; ".join(f"{one.policy.label}: {why_not_eligible(one, goal)}" for one in ranking[:3])
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
            f"The first, {first.policy.label}, ended as {first.outcome.value}{detail}"
        )
    return NothingMeasuredError(
        "At least one policy must be measured, but the search ended before the first was. Allow more time."
    )


def _nothing_fits(too_big: Sequence[Candidate], others: Sequence[Candidate], goal: Goal) -> str:
    limit = format_bytes(goal.memory_limit_bytes)
    text = f"At least one policy must fit below the memory limit, but none fits below {limit}. "
    known = [candidate for candidate in too_big if candidate.predicted_peak_bytes is not None]
    if known:
        closest = min(known, key=lambda candidate: (candidate.predicted_peak_bytes or 0, simplicity(candidate)))
        samples = format_count(closest.policy.micro_batch, "sample")
        text += (
            f"The smallest need is {format_bytes(closest.predicted_peak_bytes or 0)} (predicted), by "
            f"{closest.policy.label} with {samples} per pass. Raise --memory-limit above that, or allow more methods."
        )
    else:
        tried = ", ".join(dict.fromkeys(candidate.policy.label for candidate in too_big))
        text += f"Not even the smallest batch ran with: {tried}. Raise --memory-limit, or allow more methods."
    if others:
        ends = ", ".join(dict.fromkeys(f"{one.policy.label} ended as {one.outcome.value}" for one in others))
        text += f" Besides, {ends}."
    return text
