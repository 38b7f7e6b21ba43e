"""Where the time of a step on several devices went, as one of them saw it. Imports no torch."""

from __future__ import annotations

import msgspec

from advisor.phase import Phase
from advisor.text.records import CountFromOne

__all__ = ["PhaseSplit", "StepSplit"]


class PhaseSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase of a step.

    Attributes:
        seconds: All of it.
        communication_seconds: Of these, with a collective or a transfer to another device under way.
        exposed_seconds: Of these, without any operator running meanwhile: communication that nothing hides, with the
            time in which the other devices are waited for.
        idle_seconds: Of all of it, with neither an operator nor communication under way: the device waits for the
            host. ``None`` in older records.
    """

    phase: Phase
    seconds: float
    communication_seconds: float
    exposed_seconds: float
    idle_seconds: float | None = None


class StepSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step, on average over some that a profiler watched, which makes them slower: read it as shares.

    Attributes:
        phases: Those that it has, in order.
        steps: How many were watched.
    """

    phases: tuple[PhaseSplit, ...]
    steps: CountFromOne

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(one.seconds for one in self.phases)

    @property
    def exposed_share(self) -> float:
        """The share of communication that nothing hides."""
        return sum(one.exposed_seconds for one in self.phases) / self.seconds

    @property
    def hidden_share(self) -> float:
        """The share of communication during which operators ran."""
        hidden = sum(one.communication_seconds - one.exposed_seconds for one in self.phases)
        return hidden / self.seconds

    def scaled(self, seconds: float) -> StepSplit:
        """The same shares of a step of so many seconds."""
        factor = seconds / self.seconds
        phases = tuple(
            PhaseSplit(
                phase=one.phase,
                seconds=one.seconds * factor,
                communication_seconds=one.communication_seconds * factor,
                exposed_seconds=one.exposed_seconds * factor,
                idle_seconds=None if one.idle_seconds is None else one.idle_seconds * factor,
            )
            for one in self.phases
        )
        return StepSplit(phases=phases, steps=self.steps)
