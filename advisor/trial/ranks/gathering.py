"""Decide how a trial of several ranks ends, from the ranks' reports and deaths; pure logic.

One rank's failure fails the trial. When a rank disconnects, the others fail shortly after for lack of answers; such
errors are not the cause, and count only if there is no better explanation.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import msgspec

from advisor.trial.outcome import Outcome, how_it_ended, outcome_without_result
from advisor.trial.protocol import Reported
from advisor.trial.ranks.merging import merged
from advisor.trial.result import SizeResult, TrialResult
from advisor.trial.spec import TrialSpec

__all__ = ["Gathering", "Verdict"]

_GRACE_SECONDS = 2.0
"""How long to wait for the cause, or for the other ranks, once one has failed."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a trial.

    Attributes:
        result: Of the whole trial.
        clean: Whether the ranks can be used again.
    """

    result: TrialResult
    clean: bool = False


class Gathering:
    """Collects how the ranks of one trial end."""

    def __init__(self, spec: TrialSpec, size: int, memory_ran_out: Callable[[], bool]) -> None:
        self._spec = spec
        self._size = size
        self._memory_ran_out = memory_ran_out
        self._reports: dict[int, Reported] = {}
        self._deaths: dict[int, int | None] = {}
        self._trouble_since: float | None = None

    @property
    def deadline(self) -> float | None:
        """When to stop waiting for further reports; ``None`` while nothing has failed."""
        return None if self._trouble_since is None else self._trouble_since + _GRACE_SECONDS

    def report(self, rank: int, report: Reported, now: float) -> None:
        """A rank has ended its share."""
        self._reports[rank] = report
        if report.secondary or _stopped_short(report.result):
            self._trouble(now)

    def death(self, rank: int, status: int | None, now: float) -> None:
        """A rank's process has ended."""
        self._deaths[rank] = status
        self._trouble(now)

    def verdict(self, now: float) -> Verdict | None:
        """How the trial has ended; ``None`` while there is something to wait for."""
        for rank, report in self._reports.items():  # in the order of their arrival
            if report.result.outcome is not Outcome.OK and not report.secondary:
                return _failed(rank, report.result, self._spec.key)
        for rank in self._deaths:
            if rank not in self._reports:
                return self._crashed(rank)
        patient = self.deadline is None or now < self.deadline
        if len(self._reports) < self._size and patient:
            return None
        secondary = next((rank for rank, report in self._reports.items() if report.secondary), None)
        short = any(_stopped_short(report.result) for report in self._reports.values())
        if secondary is None or (short and not self._deaths):  # others failed because one ran out of memory
            return self._succeeded() if len(self._reports) == self._size or short else None
        if self._deaths:  # of ranks that were done themselves, but not with the others
            return self._crashed(next(iter(self._deaths)))
        return None if patient else _failed(secondary, self._reports[secondary].result, self._spec.key)

    def _trouble(self, now: float) -> None:
        if self._trouble_since is None:
            self._trouble_since = now

    def _succeeded(self) -> Verdict:
        reports = [self._reports[rank] for rank in sorted(self._reports) if not self._reports[rank].secondary]
        result = merged(self._spec.key, [one.result for one in reports], self._spec.policy)
        # Without its report, a rank still waits for one that ran out of memory.
        complete = len(reports) == self._size and not self._deaths
        return Verdict(result=result, clean=complete and all(one.clean for one in reports))

    def _crashed(self, rank: int) -> Verdict:
        status = self._deaths[rank]
        if status == -signal.SIGKILL and self._memory_ran_out():
            outcome, reason = Outcome.HOST_OUT_OF_MEMORY, "the kernel ended it because host memory ran out"
        else:
            how = "went away" if status is None else how_it_ended(status)
            without = "before the others had theirs" if rank in self._reports else "without a result"
            outcome, reason = outcome_without_result(status), f"it {how} {without}"
        return _failed(rank, self._spec.ended(outcome, reason), self._spec.key)


def _stopped_short(result: TrialResult) -> bool:
    """Whether a rank ended well, but not where the others do."""
    return isinstance(result, SizeResult) and result.sizing is not None and result.sizing.out_of_memory_at is not None


def _failed(rank: int, result: TrialResult, key: str) -> Verdict:
    # A refusal is about the model or the machine: every rank would say the same.
    reason = result.reason if result.outcome is Outcome.REFUSED else f"rank {rank}: {result.reason}"
    return Verdict(result=msgspec.structs.replace(result, key=key, reason=reason))
