"""What was measured, in order: repetitions of a policy become one candidate, and those that may win are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.decide.eligible import is_measured, is_outpaced, why_not_eligible
from advisor.decide.no_winner import nothing_to_choose
from advisor.decide.noise import SMALLEST_NOISE, noise_between, repeat_noise
from advisor.decide.score import maximizes, score
from advisor.goal import Goal
from advisor.measure.measurement import Measurement

__all__ = ["Ranking", "measurement_of", "noise_of_lead", "ranked", "representative"]

_ROLE_ORDER = (Role.BASELINE, Role.HAND_TUNED, Role.SEARCHED)


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The measured candidates, one for each policy.

    Attributes:
        candidates: All of them, best score first.
        eligible: Those that may win.
        finished: Those of them whose timing was not ended early; all of them if every one was.
        not_measured: What was refused, screened or failed.
        repeats: What repetitions of the same policy differed by, as a share.
    """

    candidates: tuple[Candidate, ...]
    eligible: tuple[Candidate, ...]
    finished: tuple[Candidate, ...]
    not_measured: tuple[Candidate, ...]
    repeats: float

    def in_role(self, role: Role) -> Candidate | None:
        """The candidate in a role: on the fewest devices, and of several there the one with the best score."""
        found = (candidate for candidate in self.candidates if candidate.role is role)
        return min(found, key=lambda candidate: candidate.policy.gpu_count, default=None)


def ranked(candidates: Sequence[Candidate], goal: Goal) -> Ranking:
    """Rank everything that was tried.

    Candidates of the same policy are repetitions: the one with the median score stands for them, of two the worse.

    Args:
        candidates: Everything that was tried, in the order of trying.
        goal: The goal.

    Raises:
        NothingFitsError: No policy fits below the memory limit.
        NothingMeasuredError: No policy could be measured, or none of those measured may win.
    """
    sign = 1 if maximizes(goal.kind) else -1
    groups = _by_policy([candidate for candidate in candidates if is_measured(candidate)])
    ranking = sorted(
        (representative(group, lambda one: sign * score(one, goal)) for group in groups),
        key=lambda candidate: score(candidate, goal),
        reverse=maximizes(goal.kind),
    )
    not_measured = tuple(candidate for candidate in candidates if not is_measured(candidate))
    eligible = tuple(candidate for candidate in ranking if why_not_eligible(candidate, goal) is None)
    if not eligible:
        raise nothing_to_choose(ranking, not_measured, goal)
    return Ranking(
        candidates=tuple(ranking),
        eligible=eligible,
        finished=tuple(candidate for candidate in eligible if not is_outpaced(candidate)) or eligible,
        not_measured=not_measured,
        repeats=_repeats(groups),
    )


def noise_of_lead(first: Candidate, second: Candidate, repeats: float = 0.0) -> float:
    """Relative difference of two measured candidates that may be chance.

    What took turns with the baseline differs from it by the interval of that ratio, however widely the baseline's own
    steps were spread. Two that took turns with the same leader differ by what these turns say: how widely the ratio of
    leader and baseline is spread is the same for both.

    Args:
        first: One of them.
        second: The other.
        repeats: What repetitions of the same policy differed by.
    """
    if second.role is Role.BASELINE:
        first, second = second, first
    if first.role is Role.BASELINE and second.speedup is not None:
        return max(SMALLEST_NOISE, measurement_of(second).relative_spread, repeats)
    if first.speedup is not None and second.speedup is not None:
        return max(SMALLEST_NOISE, first.speedup.spread_beside(second.speedup), repeats)
    return noise_between(measurement_of(first), measurement_of(second), repeats)


def measurement_of(candidate: Candidate) -> Measurement:
    """The figures of a measured candidate."""
    assert candidate.measurement is not None, "only measured candidates are ranked"
    return candidate.measurement


def _repeats(groups: Sequence[Sequence[Candidate]]) -> float:
    """What repetitions differed by: where trainings take turns, of those that did; a baseline's own stalls cancel."""
    in_turn = [group for group in groups if all(candidate.speedup is not None for candidate in group)]
    return repeat_noise([measurement_of(candidate) for candidate in group] for group in in_turn or groups)


def _by_policy(measured: Sequence[Candidate]) -> list[list[Candidate]]:
    groups: dict[str, list[Candidate]] = {}
    for candidate in measured:
        groups.setdefault(candidate.policy.key, []).append(candidate)
    return list(groups.values())


def representative(group: Sequence[Candidate], goodness: Callable[[Candidate], float]) -> Candidate:
    """The repetition with the median figure (of two the worse), in the most telling role that any of them had.

    Args:
        group: Measurements of one policy.
        goodness: Larger is better.
    """
    finished = [candidate for candidate in group if not is_outpaced(candidate)] or group
    worst_first = sorted(finished, key=goodness)
    role = min((candidate.role for candidate in group), key=_ROLE_ORDER.index)
    return msgspec.structs.replace(worst_first[(len(worst_first) - 1) // 2], role=role)
