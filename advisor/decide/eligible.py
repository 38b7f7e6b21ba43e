"""Whether a measured candidate may win, and why not."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from advisor.decide.candidate import Candidate, Role
from advisor.decide.drift import NOT_FINITE, drift_tolerance, within_tolerance
from advisor.decide.guard import observed_class, why_worse
from advisor.decide.score import maximizes, score
from advisor.goal import Fidelity, Goal, GoalKind
from advisor.measure.measurement import StopReason
from advisor.text.units import format_bytes, format_percent, format_times, format_times_spread
from advisor.trial.outcome import Outcome

__all__ = [
    "best_so_far",
    "is_faithful",
    "is_measured",
    "is_outpaced",
    "measured_once",
    "pace",
    "why_not_eligible",
    "why_not_faithful",
    "worth_checking",
]

_ROUNDS_THAT_TELL = 6
_EVERY_ROUND = 1.1
"""A training that is ahead by this much in all of six rounds is faster, however far the rounds are apart: one of two
equal trainings is ahead in all six by chance in one case of 64, and two processes of the same training differ by less
than a tenth."""


def is_measured(candidate: Candidate) -> bool:
    """Whether there is a measurement to rank it by."""
    return candidate.outcome is Outcome.OK and candidate.measurement is not None


def measured_once(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each measurement once: plain training is proposed, too, and then its trial as the baseline is read back."""
    found: dict[Hashable, Candidate] = {}
    for number, one in enumerate(candidates):
        is_read = is_measured(one) and one.trial_key is not None
        key = (one.policy.key, one.trial_key, one.samples_per_second, *one.model_size.items()) if is_read else number
        found.setdefault(key, one)
    return list(found.values())


def is_outpaced(candidate: Candidate) -> bool:
    """Whether its timing was ended early because it was clearly slower than the best so far."""
    return candidate.measurement is not None and candidate.measurement.stop_reason is StopReason.OUTPACED


def why_not_eligible(candidate: Candidate, goal: Goal) -> str | None:
    """Why a measured candidate may not win, in a few words; ``None`` if it may."""
    return _why_not_asked_for(candidate, goal) or why_not_faithful(candidate, goal) or _why_not_confirmed(candidate)


def is_faithful(candidate: Candidate, goal: Goal) -> bool:
    """Whether nothing known about its training rules it out."""
    return why_not_faithful(candidate, goal) is None


def _why_not_asked_for(candidate: Candidate, goal: Goal) -> str | None:
    """Why the goal rules it out, however it trains."""
    if not goal.fidelity.allows(candidate.fidelity):
        return f"fidelity {candidate.fidelity.value} is beyond the ceiling {goal.fidelity.value}"
    peak, limit = candidate.measured.memory.peak_bytes, goal.limit_on(candidate.policy.gpu_count)
    if peak > limit:
        return f"peak {format_bytes(peak)} is above the limit {format_bytes(limit)}"
    missing = [name for name in goal.kept_methods if name not in {one.name for one in candidate.policy.methods}]
    if missing:
        return f"without {' and '.join(missing)} something else is learned than with your own settings"
    if goal.global_batch is not None and candidate.policy.global_batch != goal.global_batch:
        return f"its global batch {candidate.policy.global_batch} is not the {goal.global_batch} that was asked for"
    return None


def _why_not_confirmed(candidate: Candidate) -> str | None:
    """Why its confirmation rules it out: it was no faster than the baseline in alternating steps."""
    confirmed = candidate.confirmed
    always = confirmed is not None and confirmed.rounds >= _ROUNDS_THAT_TELL and confirmed.least > _EVERY_ROUND
    if confirmed is None or confirmed.low > 1 or always:
        return candidate.not_confirmed or None
    return (
        f"its wrapper ran {format_times(confirmed.value)} as fast as the baseline in turn with it "
        f"({format_times_spread(confirmed.low, confirmed.high, confirmed.value)}), which is no gain beyond the noise"
    )


def why_not_faithful(candidate: Candidate, goal: Goal) -> str | None:
    """Why a candidate's training rules it out; ``None`` if nothing known of it does.

    The comparison with the reference run decides, or without one its first losses.
    """
    if goal.own_settings and candidate.role is Role.BASELINE:
        return None  # it is what somebody trains with
    declared, guard = candidate.fidelity, candidate.guard
    if guard is not None:
        observed = observed_class(declared, guard)
        if observed is not None and goal.fidelity.allows(observed):
            return None
        finding = why_worse(declared, guard)
        assert finding is not None, "a class worse than the declared one has a reason"
        if observed is None:
            return f"{finding.what}: training diverges from the reference" + (
                f" (tolerated: {finding.tolerated})" if finding.tolerated else ""
            )
        return (
            f"{finding.what}: above the tolerance of {declared.value}, {finding.tolerated}; "
            f"--fidelity {observed.value} would allow it"
        )
    if not within_tolerance(candidate.loss_drift, declared):
        assert candidate.loss_drift is not None
        return (
            f"loss drift {format_percent(candidate.loss_drift)} is above the tolerance "
            f"{format_percent(drift_tolerance(declared))}"
            + (f", and over more steps it was not compared: {candidate.not_compared}" if candidate.not_compared else "")
        )
    return None


def worth_checking(candidate: Candidate, others: Iterable[Candidate], goal: Goal) -> bool:
    """Whether a new candidate must be compared with the reference run before it may set the pace.

    True if it would be the best so far and does not promise bit-equal gradients, or its first losses do not match its
    promise: those are only a first look, and the comparison decides.
    """
    if not is_measured(candidate) or is_outpaced(candidate) or candidate.guard is not None:
        return False
    if _why_not_asked_for(candidate, goal) is not None or candidate.loss_drift == NOT_FINITE:
        return False
    if candidate.fidelity is Fidelity.EXACT and within_tolerance(candidate.loss_drift, candidate.fidelity):
        return False
    to_beat = pace(others, goal, candidate.policy.gpu_count)
    return to_beat is None or candidate.samples_per_second > to_beat


def best_so_far(candidates: Iterable[Candidate], goal: Goal) -> Candidate | None:
    """The best candidate that may win, for a display."""
    able = _able(candidates, goal)
    sign = 1 if maximizes(goal.kind) else -1
    return max(able, key=lambda candidate: sign * score(candidate, goal), default=None)


def pace(candidates: Iterable[Candidate], goal: Goal, gpu_count: int) -> float | None:
    """Samples per second below which a policy on ``gpu_count`` devices cannot win any more and its timing may end.

    For ``cheapest`` only policies on as many devices or fewer set the pace: anything slower is also more expensive,
    while fewer devices may be slower and still the better offer.

    Outpaced and ineligible candidates set no pace: a fast candidate that destroys the training must not end the timing
    of one that may win.
    """
    if goal.kind is GoalKind.BIGGER:
        return None  # a slow policy may carry the largest model
    able = _able(candidates, goal)
    if goal.kind is GoalKind.CHEAPEST:
        able = [candidate for candidate in able if candidate.policy.gpu_count <= gpu_count]
    return max((candidate.samples_per_second for candidate in able), default=None)


def _able(candidates: Iterable[Candidate], goal: Goal) -> list[Candidate]:
    return [
        candidate
        for candidate in candidates
        if is_measured(candidate) and not is_outpaced(candidate) and why_not_eligible(candidate, goal) is None
    ]
