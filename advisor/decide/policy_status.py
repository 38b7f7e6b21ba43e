"""Whether a policy still holds, from what differs and what was measured again."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from advisor.measure.in_turn import Speedup
from advisor.policy.file import Evidence
from advisor.policy.policy import Policy
from advisor.text.units import format_bytes, format_times, format_times_spread
from advisor.workload.difference import Difference, Weight

__all__ = ["PolicyCheck", "PolicyStatus", "moved", "status_of"]

_APART = 0.1
"""Relative difference between peaks of two runs of one policy, from how the allocator cuts its segments."""


class PolicyStatus(enum.Enum):
    """Whether a policy holds."""

    HOLDS = "holds"
    STALE = "stale"
    MOVED = "moved"
    UNKNOWN = "cannot be told"


class PolicyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found.

    Attributes:
        workload: Name of the model.
        device: Name of the device here.
        reason: Why it cannot be told; empty otherwise.
        strict: Whether warnings made the policy stale.
        remeasured: Whether the wrapper and the baseline were run.
        command: The command that measures a new policy.
    """

    policy: Policy
    workload: str
    device: str
    status: PolicyStatus
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    strict: bool = False
    remeasured: bool = False
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the policy can be trained with as it is."""
        return self.status is PolicyStatus.HOLDS

    @property
    def words(self) -> str:
        """What was found, one line each."""
        return "\n".join([self.status.value, *filter(None, [self.reason]), *(one.words for one in self.differences)])


def status_of(differences: Sequence[Difference], *, strict: bool) -> PolicyStatus:
    """What the differences come to.

    Args:
        differences: All that were found.
        strict: Whether warnings make a policy stale.
    """
    weights = {one.weight for one in differences}
    if Weight.STALE in weights or (strict and weights - {Weight.MOVED}):
        return PolicyStatus.STALE
    return PolicyStatus.MOVED if Weight.MOVED in weights else PolicyStatus.HOLDS


def moved(evidence: Evidence, peak_bytes: int, speedup: Speedup | None) -> list[Difference]:
    """Figures of the wrapper that are others than the file states: the peak, and the speedup over plain training.

    A peak moved if it is more than a tenth away; a speedup, if the intervals do not meet.
    """
    found = []
    promised = max(evidence.peak_bytes, evidence.confirmed_peak_bytes or 0)
    if abs(peak_bytes - promised) > _APART * promised:
        words = {"was": format_bytes(promised), "now": format_bytes(peak_bytes)}
        found.append(Difference(subject="peak memory", weight=Weight.MOVED, **words))
    stated = evidence.speedup_over_baseline or _from_rates(evidence)
    if stated is not None and speedup is not None:
        value, low, high = stated
        if speedup.high < low or speedup.low > high:
            words = {"was": _times(value, low, high), "now": _times(speedup.value, speedup.low, speedup.high)}
            found.append(Difference(subject="speed beside plain training", weight=Weight.MOVED, **words))
    return found


def _from_rates(evidence: Evidence) -> tuple[float, float, float] | None:
    """The speedup that two rates state, of trainings that took no turns.

    Of a model that was made larger there is none: the baseline's is the smaller model's.
    """
    baseline, own = evidence.baseline_samples_per_second, evidence.confirmed_samples_per_second
    if not baseline or evidence.floor_samples_per_second is not None:
        return None
    value = (own or evidence.samples_per_second) / baseline
    return value, value * (1 - evidence.relative_spread), value * (1 + evidence.relative_spread)


def _times(value: float, low: float, high: float) -> str:
    return f"{format_times(value)} ({format_times_spread(low, high, value)})"
