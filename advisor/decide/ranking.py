"""Rank the measured candidates: merge repetitions of a policy, and find those that may win."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from advisor.decide.candidate import Candidate, Frontier, Recommendation, Role
from advisor.decide.eligible import is_measured, is_outpaced, measured_once, why_not_eligible
from advisor.decide.no_winner import nothing_to_choose
from advisor.decide.noise import SMALLEST_NOISE, noise_between, repeat_noise
from advisor.decide.score import maximizes, score
from advisor.goal import Goal

__all__ = ["Ranking", "noise_of_lead", "ranked", "representative", "simplicity"]

_ROLE_ORDER = (Role.BASELINE, Role.HAND_TUNED, Role.SEARCHED)


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The measured candidates, one for each policy.

    Attributes:
        candidates: All of them, best score first.
        eligible: Those that may win.
        finished: The eligible ones whose timing was not ended early; all of them if every one was.
        not_measured: Candidates that were refused, screened or failed.
        repeats: Relative difference between repetitions of the same policy.
    """

    candidates: tuple[Candidate, ...]
    eligible: tuple[Candidate, ...]
    finished: tuple[Candidate, ...]
    not_measured: tuple[Candidate, ...]
    repeats: float

    def in_role(self, role: Role) -> Candidate | None:
        """The candidate in a role on the fewest devices; of several, the one with the best score."""
        found = (candidate for candidate in self.candidates if candidate.role is role)
        return min(found, key=lambda candidate: candidate.policy.gpu_count, default=None)

    def recommend(
        self, winner: Candidate, *, tie: bool, noise: float, frontier: Frontier | None = None
    ) -> Recommendation:
        """The recommendation of a winner among them."""
        return Recommendation(
            winner=winner,
            baseline=self.in_role(Role.BASELINE),
            hand_tuned=self.in_role(Role.HAND_TUNED),
            ranking=self.candidates,
            not_measured=self.not_measured,
            tie=tie,
            noise=noise,
            repeats=self.repeats,
            frontier=frontier,
        )


def ranked(candidates: Sequence[Candidate], goal: Goal) -> Ranking:
    """Rank everything that was tried.

    Candidates of the same policy are repetitions, represented by the median score, or the worse of two.

    Raises:
        NothingFitsError: No policy fits below the memory limit.
        NothingMeasuredError: No policy could be measured, or none of those measured may win.
    """
    sign = 1 if maximizes(goal.kind) else -1
    by_policy: dict[str, list[Candidate]] = {}
    for candidate in filter(is_measured, candidates):
        by_policy.setdefault(candidate.policy.key, []).append(candidate)
    groups = list(by_policy.values())
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

    For a candidate that alternated with the baseline it is the interval of that ratio, however widely the baseline's
    own steps were spread. For two that alternated with the same leader it follows from their ratios to it: the spread
    of the leader's ratio to the baseline affects both alike. Of leaders that were compared with each other in turn it
    follows from these ratios: what is uncertain of all of them alike tells none apart.
    """
    if second.role is Role.BASELINE:
        first, second = second, first
    if first.role is Role.BASELINE and second.speedup is not None:
        return max(SMALLEST_NOISE, second.measured.relative_spread, repeats)
    if first.speedup is not None and second.speedup is not None:
        return max(SMALLEST_NOISE, first.speedup.spread_beside(second.speedup), repeats)
    if first.lead_spread is not None and second.lead_spread is not None:
        return max(SMALLEST_NOISE, math.hypot(first.lead_spread, second.lead_spread), repeats)
    return noise_between(first.measured, second.measured, repeats)


def simplicity(candidate: Candidate) -> tuple[int, int, int, int, int, str]:
    """Sort key: fewer methods, better fidelity, fewer devices, a smaller batch, fewer passes; the label settles it."""
    policy = candidate.policy
    return (
        len(policy.methods),
        candidate.fidelity.rank,
        policy.gpu_count,
        policy.global_batch,
        policy.accumulation_steps,
        policy.label,
    )


def _repeats(groups: Sequence[Sequence[Candidate]]) -> float:
    """Difference between repetitions; if any trainings alternated, among those, where the baseline's stalls cancel."""
    groups = [measured_once(group) for group in groups]
    in_turn = [group for group in groups if all(candidate.speedup is not None for candidate in group)]
    return repeat_noise([candidate.measured for candidate in group] for group in in_turn or groups)


def representative(group: Sequence[Candidate], goodness: Callable[[Candidate], float]) -> Candidate:
    """The repetition with the median score (of two the worse), in the most telling role of any of them."""
    finished = [candidate for candidate in measured_once(group) if not is_outpaced(candidate)] or group
    worst_first = sorted(finished, key=goodness)
    role = min((candidate.role for candidate in group), key=_ROLE_ORDER.index)
    return msgspec.structs.replace(worst_first[(len(worst_first) - 1) // 2], role=role)
