"""Choose which of the candidates compared by short steps to time next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from advisor.decide.candidate import Candidate, Role
from advisor.decide.drift import tolerance_beside_chance, within_tolerance
from advisor.decide.eligible import is_faithful, pace
from advisor.decide.guard import drift_by_chance, refuted_drift
from advisor.goal import Goal
from advisor.methods.catalogue import get_method
from advisor.trial.outcome import Outcome

__all__ = ["hoped", "needs_comparison", "next_leader", "usually_off"]

_HOPE = 1.0
"""Standard errors by which a prediction may be too low: one in six is further off by chance."""

_DOUBTFUL = 10.0
"""Up to this many times the tolerance, first losses are doubtful; beyond it the training is taken for broken."""


def next_leader(candidates: Sequence[Candidate], goal: Goal, *, surely: bool = False) -> Candidate | None:
    """The compared candidate that is most likely to lead, if any.

    Predictions are corrected by the median error of those timed so far: short steps at small batches err in the same
    way about all large batches.

    Args:
        candidates: Everything that was tried.
        goal: The goal.
        surely: Whether to return only a candidate that is certain to lead.
    """
    # Plain training was timed at the user's batch and that of comparisons; its best batch is not known yet.
    was_timed = [one for one in candidates if one.outcome is not Outcome.COMPARED]
    timed = {one.policy.combination_key for one in was_timed if not _is_yardstick(one)}
    known = {one.policy.key for one in was_timed}
    off = _off(candidates)
    best = pace(candidates, goal, gpu_count=1)
    hope = -_HOPE if surely else _HOPE
    waiting = [
        one
        for one in candidates
        if one.outcome is Outcome.COMPARED
        and one.policy.combination_key not in timed
        and one.policy.key not in known
        and _may_be_faithful(one, goal, candidates)
        and (best is None or _hoped(one, off, hope) > best)
    ]
    return max(waiting, key=_expected, default=None)


def needs_comparison(candidate: Candidate, candidates: Iterable[Candidate]) -> bool:
    """Whether first losses leave open if its training is faithful, so that more steps must tell before it is timed."""
    chance = drift_by_chance(candidates)
    return candidate.guard is None and not within_tolerance(candidate.loss_drift, candidate.fidelity, chance)


def _may_be_faithful(candidate: Candidate, goal: Goal, candidates: Sequence[Candidate]) -> bool:
    """Whether nothing known of its training rules it out; a moderate drift of first losses is only a first look."""
    if candidate.guard is not None:
        return is_faithful(candidate, goal)
    drift, chance = candidate.loss_drift, drift_by_chance(candidates)
    if within_tolerance(drift, candidate.fidelity, chance):
        return True
    assert drift is not None, "an unmeasured drift is within every tolerance"
    doubtful = _DOUBTFUL * tolerance_beside_chance(candidate.fidelity, chance)
    return drift <= max(doubtful, refuted_drift(candidates, candidate.fidelity)) and not candidate.not_compared


def _is_yardstick(candidate: Candidate) -> bool:
    """Whether it was timed as a reference for others, not because it might lead."""
    return candidate.role is Role.BASELINE or (not candidate.policy.methods and candidate.comparison is None)


def hoped(expected: float, error: float, off: float, hope: float = _HOPE) -> float:
    """Optimistic bound of samples per second.

    Args:
        expected: Samples per second predicted by short steps.
        error: Standard error of its log.
        off: Log of the measured over the predicted throughput of others.
        hope: Standard errors by which the prediction may be too low.
    """
    return expected * math.exp(off + hope * error)


def usually_off(reached: Iterable[tuple[float, float]]) -> float:
    """Median log of measured over predicted samples per second; 0 without any."""
    logs = [math.log(rate / expected) for rate, expected in reached]
    return statistics.median(logs) if logs else 0.0


def _off(candidates: Sequence[Candidate]) -> float:
    return usually_off(
        (one.measurement.samples_per_second, one.comparison.expected_samples_per_second)
        for one in candidates
        if one.comparison is not None
        and one.measurement is not None
        and one.comparison.speedup is not None
        and one.comparison.at_batch == one.policy.micro_batch
    )


def _expected(candidate: Candidate) -> float:
    assert candidate.comparison is not None
    return candidate.comparison.expected_samples_per_second


def _hoped(candidate: Candidate, off: float, hope: float) -> float:
    assert candidate.comparison is not None
    if any(get_method(setting.name).slow_start for setting in candidate.policy.methods):
        # A slow set-up costs the time of many others: time it only if it is expected to lead.
        hope = min(hope, 0.0)
    return hoped(_expected(candidate), candidate.comparison.expected_error, off, hope)
