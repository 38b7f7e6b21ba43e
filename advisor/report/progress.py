"""What a session reports while it works."""

from __future__ import annotations

import logging
from typing import Self

from advisor.decide.candidate import Candidate
from advisor.policy.policy import Policy
from advisor.report.wording import result_words, trial_words
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
        """The study is open; at most so many trials will follow, within so many seconds."""

    def stage(self, text: str) -> None:
        """What is under way besides the search's own trials, in a few words."""

    def waited(self, seconds: float) -> None:
        """So much time has passed that does not count against the limit."""

    def trial_started(self, number: int, policy: Policy, doing: str) -> None:
        """A trial began; policies are numbered from 1, and what is done with this one is said in a few words."""

    def trial_ended(
        self, number: int, candidate: Candidate, *, best: Candidate | None, baseline: Candidate | None
    ) -> None:
        """A policy was measured, screened or refused, or failed; with the best so far, and the measured baseline."""

    def note(self, text: str) -> None:
        """Something that the user should know."""


class LoggingProgress(Progress):
    """For library calls: notes are warnings of the logger ``advisor``, all the rest is information."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("advisor")

    def stage(self, text: str) -> None:
        """Log it as information."""
        self._logger.info("%s", printable(text))

    def trial_ended(
        self, number: int, candidate: Candidate, *, best: Candidate | None, baseline: Candidate | None
    ) -> None:
        """Log it as information."""
        words = f"{trial_words(candidate)}: {result_words(candidate)}"
        self._logger.info("trial %d: %s", number, printable(words))

    def note(self, text: str) -> None:
        """Log it as a warning."""
        self._logger.warning("%s", printable(text))
