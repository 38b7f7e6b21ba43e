"""What a session reports while it works."""

from __future__ import annotations

import logging
from typing import Self

from advisor.decide.candidate import Candidate
from advisor.policy.policy import Policy
from advisor.search.space.space import Combination
from advisor.text.printable import printable

__all__ = ["LoggingProgress", "Progress"]


class Progress:
    """Hears what happens during a tuning, in order; this base class shows nothing.

    Used as a context manager: leaving gives the terminal back.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing, whatever happened."""

    def begin(self, *, workload: str, device: str, goal: str, time_limit_seconds: float, trials: int) -> None:
        """The study is open; trials will follow.

        Args:
            workload: Name of the workload.
            device: Name of the device.
            goal: What is optimized.
            time_limit_seconds: Most seconds that it may take.
            trials: Most policies that it may measure.
        """

    def stage(self, text: str) -> None:
        """What is under way besides the search's own trials, in a few words."""

    def trial_started(self, number: int, policy: Policy, doing: str) -> None:
        """A trial began.

        Args:
            number: Counts policies from 1.
            policy: What it runs.
            doing: What is being done with it, in a few words.
        """

    def trial_ended(
        self, number: int, candidate: Candidate, *, best: Candidate | None, baseline: Candidate | None
    ) -> None:
        """A policy reached its end: measured, screened, refused or failed.

        Args:
            number: The same number as at its start.
            candidate: The policy and what became of it.
            best: The best candidate so far.
            baseline: The baseline, once it was measured.
        """

    def note(self, text: str) -> None:
        """Something that the user should know."""


class LoggingProgress(Progress):
    """For library calls: what the user should know is a warning, all the rest is information for who asks for it.

    Uses the logger ``advisor``, which a training script can silence or redirect like any other.
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger("advisor")

    def stage(self, text: str) -> None:
        """Log it as information."""
        self._logger.info("%s", printable(text))

    def trial_ended(
        self, number: int, candidate: Candidate, *, best: Candidate | None, baseline: Candidate | None
    ) -> None:
        """Log it as information."""
        name = Combination.of(candidate.policy).label
        self._logger.info("trial %d: %s ended as %s", number, name, candidate.outcome.value)

    def note(self, text: str) -> None:
        """Log it as a warning."""
        self._logger.warning("%s", printable(text))
