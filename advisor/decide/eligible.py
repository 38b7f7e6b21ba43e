"""Whether a measured candidate may win, and why not."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.decide.candidate import Candidate
from advisor.decide.drift import drift_tolerance, within_tolerance
from advisor.decide.score import maximizes, score
from advisor.measure.measurement import StopReason
from advisor.problem.goal import Goal, GoalKind
from advisor.problem.units import format_bytes, format_percent
from advisor.trial.outcome import Outcome

__all__ = ["best_so_far", "is_measured", "is_outpaced", "pace", "why_not_eligible"]


def is_measured(candidate: Candidate) -> bool:
    """Whether there are figures to rank it by."""
    return candidate.outcome is Outcome.OK and candidate.measurement is not None


def is_outpaced(candidate: Candidate) -> bool:
    """Whether its timing was ended early because it was clearly slower than the best of that moment."""
    return candidate.measurement is not None and candidate.measurement.stop_reason is StopReason.OUTPACED


def why_not_eligible(candidate: Candidate, goal: Goal) -> str | None:
    """Why a measured candidate may not win, in a few words; ``None`` if it may."""
    measurement = candidate.measurement
    assert measurement is not None, "only measured candidates can be eligible"
    if not goal.fidelity.allows(candidate.fidelity):
        return f"fidelity {candidate.fidelity.value} is beyond the ceiling {goal.fidelity.value}"
    if not within_tolerance(candidate.loss_drift, candidate.fidelity):
        assert candidate.loss_drift is not None
        return (
            f"loss drift {format_percent(candidate.loss_drift)} is above the tolerance "
            f"{format_percent(drift_tolerance(candidate.fidelity))}"
        )
    limit = goal.limit_on(candidate.policy.gpu_count)
    if measurement.memory.peak_bytes > limit:
        return f"peak {format_bytes(measurement.memory.peak_bytes)} is above the limit {format_bytes(limit)}"
    if goal.global_batch is not None and candidate.policy.global_batch != goal.global_batch:
        return f"its global batch {candidate.policy.global_batch} is not the {goal.global_batch} that was asked for"
    return None


def best_so_far(candidates: Iterable[Candidate], goal: Goal) -> Candidate | None:
    """The best candidate that may win, for a display."""
    able = _able(candidates, goal)
    sign = 1 if maximizes(goal.kind) else -1
    return max(able, key=lambda candidate: sign * score(candidate, goal), default=None)


def pace(candidates: Iterable[Candidate], goal: Goal, gpu_count: int) -> float | None:
    """Samples per second below which a policy on so many devices cannot win any more, so that its timing may end.

    For ``cheapest`` only what runs on as many devices or fewer sets the pace: what is slower than that is more
    expensive as well, while fewer devices may be slower and still the better offer.

    What was outpaced sets none, and neither does what may not win: a fast candidate that destroys the training must
    not end the timing of those that would.

    Args:
        candidates: Everything that was tried.
        goal: The goal.
        gpu_count: Devices of the policy to be timed.
    """
    able = _able(candidates, goal)
    if goal.kind is GoalKind.BIGGER:
        return None  # a slow policy may carry the largest model
    if goal.kind is GoalKind.CHEAPEST:
        able = [candidate for candidate in able if candidate.policy.gpu_count <= gpu_count]
    rates = [candidate.measurement.samples_per_second for candidate in able if candidate.measurement is not None]
    return max(rates, default=None)


def _able(candidates: Iterable[Candidate], goal: Goal) -> list[Candidate]:
    return [
        candidate
        for candidate in candidates
        if is_measured(candidate) and not is_outpaced(candidate) and why_not_eligible(candidate, goal) is None
    ]
