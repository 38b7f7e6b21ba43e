"""How long each trial of a study may take, from the time limit and from what trials before it took."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SHARE_OF_TRIAL", "Durations", "TrialLimits"]

SHARE_OF_TRIAL = 1 / 12
"""Share of the whole limit that one trial may spend on stepping."""

_SHORTEST_PROBE_SECONDS = 20.0
"""Loading the libraries that a model imports takes several seconds on a busy machine, whatever the time limit."""

_SHORTEST_TRIAL_SECONDS = 2.0
_LONGEST_TRIAL_SECONDS = 30.0
"""Past half a minute of stepping more steps hardly narrow the median any further."""

_STEPS_OF_TRIAL = 6
"""Full steps that a timed trial makes at least: the first, the memory step, one to warm up (where they are quick) and
three timed ones."""

_SHARE_OF_COMPARISON = 1 / 60
"""Share of the whole limit that one run beside the exact one may spend on stepping."""

_SHORTEST_COMPARISON_SECONDS = 1.0
_LONGEST_COMPARISON_SECONDS = 10.0

_SHARE_OF_TURNS = 1 / 60
"""Share of the whole limit for which a combination's short steps may take turns with plain training's."""

_SHORTEST_TURNS_SECONDS = 0.5
_LONGEST_TURNS_SECONDS = 8.0

_SHARE_TO_SET_UP = 1 / 6
"""Share of the whole limit that a method which compiles may take for it, in each trial and beyond its stepping."""

_PATIENCE = 4.0
"""A trial is ended by force after this many times its expected stepping: it hangs, or is of no use to the search."""

_LONGEST_TRACE_SECONDS = 30.0


class Durations:
    """What trials have taken so far.

    Attributes:
        build_seconds: Start-up, building the model and its first steps.
        trial_seconds: Of each policy, from its proposal to its figures.
        short_seconds: Of each combination that was compared by short steps.
        timing_seconds: To time one batch.
        comparison_seconds: Of a candidate's own run beside the reference run; ``None`` before the first.
    """

    def __init__(self) -> None:
        self.build_seconds = 0.0
        self.trial_seconds: list[float] = []
        self.short_seconds: list[float] = []
        self.timing_seconds = 0.0
        self.comparison_seconds: float | None = None

    def learn_build_seconds(self, seconds: float) -> None:
        """Take in how long the probe took: start-up, building the model and its first steps."""
        self.build_seconds = max(self.build_seconds, seconds)

    def learn_trial_seconds(self, seconds: float) -> None:
        """Take in how long a policy took from its proposal to its figures, sizing included."""
        self.trial_seconds.append(seconds)

    def learn_short_seconds(self, seconds: float) -> None:
        """Take in how long a combination took that was compared by short steps."""
        self.short_seconds.append(seconds)

    def learn_timing_seconds(self, seconds: float) -> None:
        """Take in how long it took to time one batch: a confirmation does that in a fresh process."""
        self.timing_seconds = max(self.timing_seconds, seconds)

    def learn_comparison_seconds(self, seconds: float) -> None:
        """Take in how long a candidate's own run beside the exact one took."""
        self.comparison_seconds = max(self.comparison_seconds or 0.0, seconds)

    def expected_short_seconds(self, otherwise: float) -> float:
        """What the next combination that is compared by short steps will probably take.

        Args:
            otherwise: Before there was one.
        """
        recent = sorted(self.short_seconds[-5:])
        return recent[len(recent) // 2] if recent else otherwise


class TrialLimits:
    """Soft limits for stepping, and hard limits of whole trials.

    Args:
        limit_seconds: The user's time limit, for everything.
        share_of_trial: Share of it that one trial may spend on stepping.
        durations: What trials have taken so far.
        remaining: Returns the seconds that are left.
    """

    def __init__(
        self, limit_seconds: float, share_of_trial: float, durations: Durations, remaining: Callable[[], float]
    ) -> None:
        self._limit_seconds = limit_seconds
        self._share_of_trial = share_of_trial
        self._durations = durations
        self._remaining = remaining

    @property
    def measure_seconds(self) -> float:
        """Soft limit for the stepping of one timed trial."""
        return min(_LONGEST_TRIAL_SECONDS, max(_SHORTEST_TRIAL_SECONDS, self._limit_seconds * self._share_of_trial))

    @property
    def sizing_seconds(self) -> float:
        """Soft limit for the stepping of one sizing trial."""
        return self.measure_seconds / 2

    @property
    def turn_seconds(self) -> float:
        """How long a combination's short steps may take turns with those of plain training."""
        share = self._limit_seconds * _SHARE_OF_TURNS
        return min(_LONGEST_TURNS_SECONDS, max(_SHORTEST_TURNS_SECONDS, share))

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
        """Soft limit for the stepping of one run that is held against the reference run, or of that one itself."""
        share = self._limit_seconds * _SHARE_OF_COMPARISON
        return min(_LONGEST_COMPARISON_SECONDS, max(_SHORTEST_COMPARISON_SECONDS, share))

    def comparison_limit_seconds(self, *, slow_start: bool = False) -> float:
        """Hard limit of such a run.

        Args:
            slow_start: Whether a method is set up first that may take long.
        """
        patient = 5.0 + 2 * self._durations.build_seconds + _PATIENCE * self.comparison_step_seconds
        return max(patient, min(patient + self._set_up_seconds, self._remaining())) if slow_start else patient

    @property
    def _set_up_seconds(self) -> float:
        return self._limit_seconds * _SHARE_TO_SET_UP

    def hard_limit_seconds(self, expected_step_seconds: float | None, *, slow_start: bool = False) -> float:
        """Hard limit of one trial.

        Args:
            expected_step_seconds: Predicted seconds per step, or ``None`` if nothing is known yet.
            slow_start: Whether a method is set up first that may take long.
        """
        stepping = self.measure_seconds
        if expected_step_seconds is not None:
            stepping = max(stepping, _STEPS_OF_TRIAL * expected_step_seconds)
        patient = 5.0 + 2 * self._durations.build_seconds + _PATIENCE * stepping
        patient += self._set_up_seconds if slow_start else 0.0
        if not self._durations.trial_seconds:
            return patient  # without the first there is no answer: it may overdraw the limit
        return max(5.0, min(patient, self._remaining()))

    @property
    def set_up_limit_seconds(self) -> float:
        """Hard limit of a combination's short steps where a method is set up first.

        What one may take for that is a share of the whole limit; the time of several others is not waited for.
        """
        without = max(
            self._durations.expected_short_seconds(2 * self.turn_seconds),
            self._durations.build_seconds + self.turn_seconds,
        )
        return without + self._set_up_seconds

    def confirmation_limit_seconds(self, expected_step_seconds: float | None, *, slow_start: bool = False) -> float:
        """Hard limit of the confirming run; the time limit may pass meanwhile, because an answer needs it.

        Args:
            expected_step_seconds: Predicted seconds per step, or ``None`` if nothing is known.
            slow_start: Whether a method is set up first that may take long.
        """
        stepping = max(self.measure_seconds, _STEPS_OF_TRIAL * (expected_step_seconds or 0.0))
        return 30.0 + 2 * self._durations.build_seconds + 2 * stepping + (self._set_up_seconds if slow_start else 0.0)

    @property
    def trace_limit_seconds(self) -> float:
        """Hard limit of following one step without running it."""
        return max(5.0, min(2 * self._durations.build_seconds + _LONGEST_TRACE_SECONDS, self._remaining()))
