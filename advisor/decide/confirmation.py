"""What became of the winner's wrapper in fresh processes."""

from __future__ import annotations

import msgspec

from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.trial.outcome import Outcome

__all__ = ["Confirmation"]

_MOST_NOISE = 0.5
"""Largest deviation of a confirming run that noise may explain."""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The emitted wrapper, run in a fresh process.

    Attributes:
        outcome: How the run ended.
        reason: Why, when not OK; or why no run was made.
        measurement: Its measurement when OK.
        promised_samples_per_second: Throughput measured by the search.
        baseline_samples_per_second: The baseline, measured again in the same way right after, if time allowed.
        speedup: Speedup over the baseline, which trained in a fresh process too, alternating with the wrapper.
        promise: Speedup that the user may count on, from both the search and the confirmation.
        noise: Relative difference from the search's measurement that noise explains.
        drift: The baseline's throughput right after the run relative to the search's, if it was measured again.
        other_samples_per_second: Throughput of a second run that was further from the search's, if there was one.
        expected_speedup: The speedup over the baseline that the policy showed before: in turn with it, in the search
            or in an earlier confirmation if that was nearer; else between trials of their own.
        without_stalls: Where others or its heap slowed the baseline down: the speedup over one with the methods around
            that.
        around_stalls: These methods, in words.
        page_faults: Where its heap did: pages that a step of the baseline took from the system, in each process.
        other_load: Where the run was far from its promise, or that is unsteady: what else kept the machine busy then.
    """

    outcome: Outcome
    reason: str = ""
    measurement: Measurement | None = None
    promised_samples_per_second: float
    baseline_samples_per_second: float | None = None
    speedup: Speedup | None = None
    promise: Speedup | None = None
    noise: float = 0.1
    drift: float | None = None
    other_samples_per_second: float | None = None
    expected_speedup: float | None = None
    without_stalls: Speedup | None = None
    around_stalls: str = ""
    page_faults: tuple[float, ...] = ()
    other_load: str = ""

    @property
    def as_promised(self) -> bool:
        """Whether the run matched what was measured before, up to the noise: neither slower nor faster.

        A machine that became slower or faster meanwhile, as the baseline shows, breaks no promise.
        """
        if self.speedup is not None and self.expected_speedup is None:
            return True  # as an earlier version stored it
        return self.found_share is not None and abs(self.found_share - 1) <= self.tolerated

    @property
    def is_unsteady(self) -> bool:
        """Whether the speedup that it promises is known so badly that an idle machine would say more."""
        return self.promise is not None and self.promise.is_unsteady

    @property
    def found_share(self) -> float | None:
        """What was found of what was due: of the speedup, or of the throughput at the present speed."""
        if self.speedup is not None:
            return None if self.expected_speedup is None else self.speedup.value / self.expected_speedup
        return None if self.kept is None else self.kept / (self.drift or 1.0)

    @property
    def tolerated(self) -> float:
        """Difference that noise explains; a measurement uncertain by more than half its value confirms nothing."""
        return min(self.noise, _MOST_NOISE)

    @property
    def kept(self) -> float | None:
        """Confirmed / promised throughput."""
        if self.measurement is None or self.promised_samples_per_second <= 0:
            return None
        return self.measurement.samples_per_second / self.promised_samples_per_second
