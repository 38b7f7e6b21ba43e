"""Divide the time limit: when to stop searching and confirm."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from advisor.session.trial_limits import SHARE_OF_TRIAL, Durations, TrialLimits

__all__ = ["TIMED_LEADERS", "TimeBudget"]

TIMED_LEADERS = 2
"""Leaders to reserve time for while combinations are compared."""

_KEPT_REPETITIONS = 2
"""Second measurements to reserve time for: the winner's and the baseline's."""

_FEWEST_POLICIES = 3
"""Reserve no time for these before this many trials: the first two are plain training, at two batches."""

_SEVERAL = 6
"""Trials that show more near a leader than short comparisons would in their time."""

_USUAL_TRACE_SECONDS = 3.0


class TimeBudget:
    """The clock of one session."""

    def __init__(
        self,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        share_of_trial: float = SHARE_OF_TRIAL,
    ) -> None:
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._start = clock()
        self.durations = Durations()
        self.limits = TrialLimits(limit_seconds, share_of_trial, self.durations, lambda: self.remaining_seconds)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Within, no time passes: what is done does not count against the limit."""
        begin = self._clock()
        try:
            yield
        finally:
            self._start += self._clock() - begin

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._start

    @property
    def remaining_seconds(self) -> float:
        """Seconds left of the limit; not below zero."""
        return max(0.0, self.limit_seconds - self.elapsed_seconds)

    @property
    def expected_comparison_seconds(self) -> float:
        """Predicted seconds of the next comparison with the reference run."""
        known = self.durations.comparison_seconds
        return self.limits.comparison_step_seconds if known is None else known

    @property
    def expected_trial_seconds(self) -> float:
        """Predicted seconds of the next trial."""
        return self.durations.expected_trial_seconds(self.durations.build_seconds + self.limits.measure_seconds)

    @property
    def confirmation_seconds(self) -> float:
        """Seconds to reserve for a fresh run of the wrapper.

        It builds two trainings, the winner and the baseline that alternates with it. One build is counted, as long as
        the first of the run, which also loads the libraries.
        """
        return self.durations.build_seconds + self.durations.timing_seconds

    def _fits(self, seconds: float, reserved: float) -> bool:
        """Whether so many seconds fit before those reserved for the end, which are at most half of the limit."""
        return self.remaining_seconds - min(reserved, self.limit_seconds / 2) > seconds

    @property
    def may_compare(self) -> bool:
        """Whether a comparison fits before the time reserved for confirmation."""
        return self._fits(self.expected_comparison_seconds, self.confirmation_seconds)

    @property
    def may_trace(self) -> bool:
        """Whether the two traces that show where a step's time goes fit before the limit."""
        return self.remaining_seconds > 2 * (self.durations.build_seconds + _USUAL_TRACE_SECONDS)

    @property
    def may_confirm_another(self) -> bool:
        """Whether another confirmation fits, after one that showed no gain."""
        return self.remaining_seconds > self.confirmation_seconds

    @property
    def may_start_trial(self) -> bool:
        """Whether another trial fits before the time reserved for the end.

        The reserve covers one comparison, a second measurement of the winner and of the baseline, and confirmation, but
        at most half of the limit: without measurements there is nothing to confirm. After few trials nothing is
        reserved for second measurements: on a slow device another policy is worth more.
        """
        return self._may_start(_KEPT_REPETITIONS if len(self.durations.trial_seconds) >= _FEWEST_POLICIES else 0)

    @property
    def may_start_unrivalled(self) -> bool:
        """The same while nothing has beaten the baseline: then nothing will be measured again."""
        return self._may_start(0)

    def _may_start(self, repetitions: int) -> bool:
        end = self.expected_comparison_seconds + repetitions * self.durations.timing_seconds + self.confirmation_seconds
        return self._fits(self.expected_trial_seconds, end)

    def may_compare_another(self, leaders: int = TIMED_LEADERS) -> bool:
        """Whether another combination can be compared before the time reserved for timing and confirming leaders."""
        end = self.expected_comparison_seconds + self.confirmation_seconds + leaders * self.durations.timing_seconds
        return self._fits(self.durations.expected_short_seconds(2 * self.limits.turn_seconds), end)

    def may_compare_last(self, *, checked: bool) -> bool:
        """Whether another combination can be compared when nothing became a leader whose timing needs time.

        The winner's comparison with the reference run and a brief confirmation follow. Where this matters steps are
        slow, so the confirmation is expected to use all of its soft limit.

        Args:
            checked: Whether the winner so far was compared with the reference run.
        """
        comparing = 0.0 if checked else self.expected_comparison_seconds
        stepping = max(self.durations.timing_seconds, self.limits.shortest_confirmation_seconds)
        end = comparing + self.durations.build_seconds + stepping
        return self._fits(self.durations.expected_short_seconds(2 * self.limits.turn_seconds), end)

    @property
    def may_time_several(self) -> bool:
        """Whether there is time to look for something better trial by trial."""
        return self._fits(_SEVERAL * self.expected_trial_seconds, self.confirmation_seconds)

    @property
    def may_set_up(self) -> bool:
        """Whether a method may take its limit for its set-up, and a leader can be timed and confirmed all the same."""
        end = self.expected_comparison_seconds + self.confirmation_seconds + self.durations.timing_seconds
        return self._fits(self.limits.set_up_limit_seconds, end)

    def may_time_leader(self, *, slow_start: bool = False) -> bool:
        """Whether a leader can be timed before one comparison with the reference run and the confirmation.

        Args:
            slow_start: Whether it needs a set-up, such as compiling, for each of the three.
        """
        timing = self.durations.expected_timing_seconds(slow_start=slow_start)
        set_up = self.durations.set_up_seconds if slow_start else 0.0
        end = self.expected_comparison_seconds + set_up + self.durations.build_seconds + timing
        return self._fits(timing, end)

    @property
    def may_repeat(self) -> bool:
        """Whether a leader can be measured again before the time reserved for confirmation."""
        return self._fits(self.durations.timing_seconds, self.confirmation_seconds)
