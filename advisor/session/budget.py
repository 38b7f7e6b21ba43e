"""Divide the time limit: how long one trial may take, and when to stop searching and confirm."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["TIMED_LEADERS", "TimeBudget"]

_SHARE_OF_TRIAL = 1 / 12
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

TIMED_LEADERS = 2
"""Leaders that time is kept for while combinations are compared."""

_KEPT_REPETITIONS = 2
"""Second measurements that time is kept for: the winner's and the baseline's."""

_FEWEST_POLICIES = 3
"""Before so many were tried no time is kept for that: the first two are plain training, at two batches."""

_USUAL_TRACE_SECONDS = 3.0
_LONGEST_TRACE_SECONDS = 30.0

_SHARE_TO_SET_UP = 1 / 6
"""Share of the whole limit that a method which compiles may take for it, in each trial and beyond its stepping."""

_PATIENCE = 4.0
"""A trial is ended by force after this many times its expected stepping: it hangs, or is of no use to the search."""


class TimeBudget:
    """The clock of one session.

    Args:
        limit_seconds: The user's time limit, for everything.
        clock: A monotonic clock, in seconds.
        share_of_trial: Share of the limit that one trial may spend on stepping.
    """

    def __init__(
        self,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        share_of_trial: float = _SHARE_OF_TRIAL,
    ) -> None:
        self.limit_seconds = limit_seconds
        self._share_of_trial = share_of_trial
        self._clock = clock
        self._start = clock()
        self._build_seconds = 0.0
        self._trial_seconds: list[float] = []
        self._short_seconds: list[float] = []
        self._timing_seconds = 0.0
        self._comparison_seconds: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._start

    @property
    def remaining_seconds(self) -> float:
        """Seconds left of the limit; not below zero."""
        return max(0.0, self.limit_seconds - self.elapsed_seconds)

    @property
    def measure_seconds(self) -> float:
        """Soft limit for the stepping of one timed trial."""
        return min(_LONGEST_TRIAL_SECONDS, max(_SHORTEST_TRIAL_SECONDS, self.limit_seconds * self._share_of_trial))

    @property
    def sizing_seconds(self) -> float:
        """Soft limit for the stepping of one sizing trial."""
        return self.measure_seconds / 2

    @property
    def turn_seconds(self) -> float:
        """How long a combination's short steps may take turns with those of plain training."""
        share = self.limit_seconds * _SHARE_OF_TURNS
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
        return max(_SHORTEST_PROBE_SECONDS, self.limit_seconds / 3)

    @property
    def comparison_step_seconds(self) -> float:
        """Soft limit for the stepping of one run that is held against the reference run, or of that one itself."""
        share = self.limit_seconds * _SHARE_OF_COMPARISON
        return min(_LONGEST_COMPARISON_SECONDS, max(_SHORTEST_COMPARISON_SECONDS, share))

    def comparison_limit_seconds(self, *, slow_start: bool = False) -> float:
        """Hard limit of such a run.

        Args:
            slow_start: Whether a method is set up first that may take long.
        """
        patient = 5.0 + 2 * self._build_seconds + _PATIENCE * self.comparison_step_seconds
        return max(patient, min(patient + self._set_up_seconds, self.remaining_seconds)) if slow_start else patient

    @property
    def _set_up_seconds(self) -> float:
        return self.limit_seconds * _SHARE_TO_SET_UP

    @property
    def expected_comparison_seconds(self) -> float:
        """What the next comparison with the reference run will probably take."""
        known = self._comparison_seconds
        return self.comparison_step_seconds if known is None else known

    @property
    def may_compare(self) -> bool:
        """Whether a comparison fits before the time that confirmation needs."""
        kept = min(self.confirmation_seconds, self.limit_seconds / 2)
        return self.remaining_seconds - kept > self.expected_comparison_seconds

    def learn_comparison_seconds(self, seconds: float) -> None:
        """Take in how long a candidate's own run beside the exact one took."""
        self._comparison_seconds = max(self._comparison_seconds or 0.0, seconds)

    def learn_build_seconds(self, seconds: float) -> None:
        """Take in how long the probe took: start-up, building the model and its first steps."""
        self._build_seconds = max(self._build_seconds, seconds)

    def learn_timing_seconds(self, seconds: float) -> None:
        """Take in how long it took to time one batch: a confirmation does that in a fresh process."""
        self._timing_seconds = max(self._timing_seconds, seconds)

    def learn_trial_seconds(self, seconds: float) -> None:
        """Take in how long a policy took from its proposal to its figures, sizing included."""
        self._trial_seconds.append(seconds)

    def hard_limit_seconds(self, expected_step_seconds: float | None, *, slow_start: bool = False) -> float:
        """Hard limit of one trial.

        Args:
            expected_step_seconds: Predicted seconds per step, or ``None`` if nothing is known yet.
            slow_start: Whether a method is set up first that may take long.
        """
        stepping = self.measure_seconds
        if expected_step_seconds is not None:
            stepping = max(stepping, _STEPS_OF_TRIAL * expected_step_seconds)
        patient = 5.0 + 2 * self._build_seconds + _PATIENCE * stepping
        patient += self._set_up_seconds if slow_start else 0.0
        if not self._trial_seconds:
            return patient  # without the first there is no answer: it may overdraw the limit
        return max(5.0, min(patient, self.remaining_seconds))

    @property
    def set_up_limit_seconds(self) -> float:
        """Hard limit of a combination's short steps where a method is set up first.

        What one may take for that is a share of the whole limit; the time of several others is not waited for.
        """
        without = max(self._expected_short_seconds, self._build_seconds + self.turn_seconds)
        return without + self._set_up_seconds

    def confirmation_limit_seconds(self, expected_step_seconds: float | None, *, slow_start: bool = False) -> float:
        """Hard limit of the confirming run; the time limit may pass meanwhile, because an answer needs it.

        Args:
            expected_step_seconds: Predicted seconds per step, or ``None`` if nothing is known.
            slow_start: Whether a method is set up first that may take long.
        """
        stepping = max(self.measure_seconds, _STEPS_OF_TRIAL * (expected_step_seconds or 0.0))
        return 30.0 + 2 * self._build_seconds + 2 * stepping + (self._set_up_seconds if slow_start else 0.0)

    @property
    def trace_limit_seconds(self) -> float:
        """Hard limit of following one step without running it."""
        return max(5.0, min(2 * self._build_seconds + _LONGEST_TRACE_SECONDS, self.remaining_seconds))

    @property
    def may_trace(self) -> bool:
        """Whether two traces, which tell where the time of a step goes, fit before the limit."""
        return self.remaining_seconds > 2 * (self._build_seconds + _USUAL_TRACE_SECONDS)

    @property
    def expected_trial_seconds(self) -> float:
        """What the next trial will probably take."""
        if not self._trial_seconds:
            return self._build_seconds + self.measure_seconds
        recent = sorted(self._trial_seconds[-5:])
        return recent[len(recent) // 2]

    @property
    def confirmation_seconds(self) -> float:
        """What must be kept for a fresh run of the wrapper.

        Two trainings are built for it, the winner's and that of the baseline which takes turns with it or is measured
        right after it.
        """
        return 2 * self._build_seconds + self._timing_seconds

    @property
    def may_confirm_another(self) -> bool:
        """Whether another confirmation fits, after one that showed no gain."""
        return self.remaining_seconds > self.confirmation_seconds

    @property
    def may_start_trial(self) -> bool:
        """Whether another trial fits before the time that is kept for the end.

        That is one comparison, a second measurement of the winner and of the baseline, and confirmation. It is never
        more than half of the limit: without measurements there is nothing to confirm. Nor is time kept to measure
        twice what little was compared with: on a slow device another policy is worth more than that.
        """
        repetitions = _KEPT_REPETITIONS if len(self._trial_seconds) >= _FEWEST_POLICIES else 0
        end = self.expected_comparison_seconds + repetitions * self._timing_seconds + self.confirmation_seconds
        return self.remaining_seconds - min(end, self.limit_seconds / 2) > self.expected_trial_seconds

    def may_compare_another(self, leaders: int = TIMED_LEADERS) -> bool:
        """Whether another combination can be compared before the time that timing and confirming leaders needs.

        That is never more than half of the limit, however long a timed trial takes.

        Args:
            leaders: How many are still to be timed.
        """
        end = self.expected_comparison_seconds + self.confirmation_seconds + leaders * self._timing_seconds
        end = min(end, self.limit_seconds / 2)
        return self.remaining_seconds - end > self._expected_short_seconds

    @property
    def may_time_leader(self) -> bool:
        """Whether a leader can be timed before one comparison with the reference run and the confirmation."""
        end = self.expected_comparison_seconds + self.confirmation_seconds
        return self.remaining_seconds - min(end, self.limit_seconds / 2) > self._timing_seconds

    @property
    def _expected_short_seconds(self) -> float:
        recent = sorted(self._short_seconds[-5:])
        return recent[len(recent) // 2] if recent else 2 * self.turn_seconds

    def learn_short_seconds(self, seconds: float) -> None:
        """Take in how long a combination took that was compared by short steps."""
        self._short_seconds.append(seconds)

    @property
    def may_repeat(self) -> bool:
        """Whether a leader can be measured once more before the time that confirmation needs."""
        kept = min(self.confirmation_seconds, self.limit_seconds / 2)
        return self.remaining_seconds - kept > self._timing_seconds
