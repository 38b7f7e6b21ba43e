"""What became of a combination of methods: a candidate, and those that were tried on the way to it."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate

__all__ = ["Evaluation"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, and whether it settles its combination.

    Attributes:
        settles_combination: Whether no other batch of the same methods needs to be tried.
        before: Candidates that were tried on the way to it.
        smaller: The same methods at a smaller batch, timed in the same trial.
        expected_rate: Samples per second that profiling runs promise, where it was not measured for being too slow.
    """

    candidate: Candidate
    settles_combination: bool = False
    before: tuple[Candidate, ...] = ()
    smaller: Candidate | None = None
    expected_rate: float | None = None
