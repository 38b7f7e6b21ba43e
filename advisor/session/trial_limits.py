"""How long each trial of a study may take, from the time limit and the durations of earlier trials."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

__all__ = ["SHARE_OF_TRIAL", "Durations", "TrialLimits"]

SHARE_OF_TRIAL = 1 / 12
"""Share of the whole limit that one trial may spend on stepping."""

_SHORTEST_PROBE_SECONDS = 20.0
"""Loading the libraries that a model imports takes several seconds on a busy machine, whatever the time limit."""

_SHORTEST_TRIAL_SECONDS = 2.0
_LONGEST_TRIAL_SECONDS = 30.0
"""After half a minute, more steps hardly narrow the median."""

_STEPS_OF_TRIAL = 6
"""Fewest full steps of a timed trial: the first, the memory step, a warm-up (if steps are quick) and three timed."""

_COMPARISON = 1 / 60, 1.0, 10.0
"""Stepping of one comparison with the reference run: share of the whole limit, fewest and most seconds."""

_TURNS = 1 / 60, 0.5, 8.0
"""The same of a combination's short steps that alternate with plain training's."""

_SHARE_TO_SET_UP = 1 / 6
"""Share of the whole limit that compiling may take in each trial, beyond its stepping."""

_PATIENCE = 4.0
"""A trial is killed after this many times its expected stepping: it hangs, or is of no use to the search."""

_SHARE_OF_BRIEF_CONFIRMATION = 1 / 2
"""Share of a timed trial's stepping that a confirmation makes even if no time is left."""

_LONGEST_TRACE_SECONDS = 30.0


class Durations:
    """What trials have taken so far.

    Attributes:
        build_seconds: Of the probe: start-up, building the model and its first steps.
        trial_seconds: Each policy, from its proposal to its measurements, sizing included.
        short_seconds: Each combination that was compared by short steps.
        timing_seconds: The longest timing of one batch, which a confirmation does in a fresh process.
        quick_timing_seconds: The longest one without a set-up, such as compiling.
        comparison_seconds: The longest run of a candidate for a comparison; ``None`` before the first.
    """

    def __init__(self) -> None:
        self.build_seconds = 0.0
        self.trial_seconds: list[float] = []
        self.short_seconds: list[float] = []
        self._quick_seconds: list[float] = []
        self._slow_seconds = 0.0
        self.timing_seconds = 0.0
        self.quick_timing_seconds = 0.0
        self.comparison_seconds: float | None = None

    def compared(self, seconds: float, *, slow_start: bool) -> None:
        """Note how long comparing one combination by short steps took, with or without a set-up."""
        self.short_seconds.append(seconds)
        if slow_start:
            self._slow_seconds = max(self._slow_seconds, seconds)
        else:
            self._quick_seconds.append(seconds)

    @property
    def set_up_seconds(self) -> float:
        """The longest set-up of a comparison, such as compiling: what it took beyond what the quick ones take."""
        usual = statistics.median(self._quick_seconds) if self._quick_seconds else self.build_seconds
        return max(0.0, self._slow_seconds - usual)

    def expected_timing_seconds(self, *, slow_start: bool) -> float:
        """Predict how long timing one batch takes, with a set-up or without."""
        if not slow_start:
            return self.timing_seconds
        # The longest timing may have had a set-up already.
        return max(self.timing_seconds, self.quick_timing_seconds + self.set_up_seconds)

    def expected_short_seconds(self, otherwise: float) -> float:
        """Predict how long comparing the next combination by short steps takes."""
        return _recently(self.short_seconds, otherwise)

    def expected_trial_seconds(self, otherwise: float) -> float:
        """Predict how long the next trial takes."""
        return _recently(self.trial_seconds, otherwise)


def _recently(seconds: Sequence[float], otherwise: float) -> float:
    return statistics.median_high(seconds[-5:]) if seconds else otherwise


class TrialLimits:
    """Soft limits for stepping, and hard limits of whole trials."""

    confirms_briefly = False
    """Whether the time for the confirmation went to comparisons, but for the shortest."""

    has_answer = False
    """Whether earlier runs of this study measured something."""

    def __init__(
        self, limit_seconds: float, share_of_trial: float, durations: Durations, remaining: Callable[[], float]
    ) -> None:
        self._limit_seconds = limit_seconds
        self._share_of_trial = share_of_trial
        self._durations = durations
        self._remaining = remaining
        self._set_up_seconds = limit_seconds * _SHARE_TO_SET_UP

    @property
    def measure_seconds(self) -> float:
        """Soft limit for the stepping of one timed trial."""
        return self._share(self._share_of_trial, _SHORTEST_TRIAL_SECONDS, _LONGEST_TRIAL_SECONDS)

    @property
    def confirmation_step_seconds(self) -> float:
        """Soft limit for the stepping of the confirming run: that of a timed trial, or what is left, if it is brief."""
        if not self.confirms_briefly:
            return self.measure_seconds
        left = self._remaining() - self._durations.build_seconds
        return max(self.shortest_confirmation_seconds, min(self.measure_seconds, left))

    @property
    def shortest_confirmation_seconds(self) -> float:
        """The stepping of a brief one that begins when no time is left."""
        return _SHARE_OF_BRIEF_CONFIRMATION * self.measure_seconds

    @property
    def ladder_seconds(self) -> float:
        """Seconds from now by which a leader's ladder should end: what may win is compared and confirmed after it."""
        known = self._durations.comparison_seconds
        comparing = self.comparison_step_seconds if known is None else known
        after = comparing + self._durations.build_seconds + self._durations.timing_seconds
        return max(0.0, self._remaining() - min(after, self._limit_seconds / 2))

    @property
    def sizing_seconds(self) -> float:
        """Soft limit for the stepping of one sizing trial."""
        return self.measure_seconds / 2

    @property
    def turn_seconds(self) -> float:
        """How long a combination's short steps may take turns with those of plain training."""
        return self._share(*_TURNS)

    @property
    def longest_step_seconds(self) -> float:
        """The longest step that a timed trial can still measure; caps the batch on a slow device.

        A trial may overdraw its soft limit by half to finish its fewest steps.
        """
        return 1.5 * self.measure_seconds / _STEPS_OF_TRIAL

    @property
    def probe_limit_seconds(self) -> float:
        """Hard limit of the probe: a model that cannot finish one step in a third of the time cannot be tuned in it."""
        return max(_SHORTEST_PROBE_SECONDS, self._limit_seconds / 3)

    @property
    def comparison_step_seconds(self) -> float:
        """Soft limit for the stepping of a run that is compared with the reference run, or of the latter."""
        return self._share(*_COMPARISON)

    def comparison_limit_seconds(self, *, slow_start: bool = False) -> float:
        """Hard limit of such a run."""
        patient = 5.0 + 2 * self._durations.build_seconds + _PATIENCE * self.comparison_step_seconds
        return max(patient, min(patient + self._set_up_seconds, self._remaining())) if slow_start else patient

    def _share(self, share: float, least_seconds: float, most_seconds: float) -> float:
        return min(most_seconds, max(least_seconds, self._limit_seconds * share))

    def hard_limit_seconds(self, expected_step_seconds: float | None, *, slow_start: bool = False) -> float:
        """Hard limit of one trial."""
        stepping = self.measure_seconds
        if expected_step_seconds is not None:
            stepping = max(stepping, _STEPS_OF_TRIAL * expected_step_seconds)
        patient = 5.0 + 2 * self._durations.build_seconds + _PATIENCE * stepping
        patient += self._set_up_seconds if slow_start else 0.0
        if not (self.has_answer or self._durations.trial_seconds):
            return patient  # without the first there is no answer: it may overdraw the limit
        return max(5.0, min(patient, self._remaining()))

    @property
    def set_up_limit_seconds(self) -> float:
        """Hard limit of a combination's short steps where a method needs a set-up.

        The set-up may take its share of the whole limit, not the time of several other combinations.
        """
        without = max(
            self._durations.expected_short_seconds(2 * self.turn_seconds),
            self._durations.build_seconds + self.turn_seconds,
        )
        return without + self._set_up_seconds

    def confirmation_limit_seconds(self, expected_step_seconds: float | None, *, slow_start: bool = False) -> float:
        """Hard limit of the confirming run, which may exceed the time limit because an answer needs it."""
        stepping = max(self.measure_seconds, _STEPS_OF_TRIAL * (expected_step_seconds or 0.0))
        return 30.0 + 2 * self._durations.build_seconds + 2 * stepping + (self._set_up_seconds if slow_start else 0.0)

    @property
    def trace_limit_seconds(self) -> float:
        """Hard limit of tracing one step without running it."""
        return max(5.0, min(2 * self._durations.build_seconds + _LONGEST_TRACE_SECONDS, self._remaining()))
