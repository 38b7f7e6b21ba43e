"""Outcomes of a trial, never guessed from its output."""

from __future__ import annotations

import enum
import os
import signal

__all__ = ["Outcome", "how_it_ended", "outcome_without_result", "status_of"]


class Outcome(enum.Enum):
    """Set from the child's result file or exit status, never by reading what it printed."""

    OK = "ok"
    COMPARED = "compared"
    """A profiling run alternating with plain training showed that it does not need full timing."""
    OUT_OF_MEMORY = "out of memory"
    """The device's memory, or the memory limit, was exceeded."""
    HOST_OUT_OF_MEMORY = "host out of memory"
    """Host memory ran out (the kernel ended the worker, or a host allocation failed)."""
    TIMEOUT = "timeout"
    """The trial exceeded its time limit; its process group was killed."""
    CRASHED = "crashed"
    """The worker ended itself without a result: a fault such as a segmentation fault, or ``os._exit``."""
    LOST = "lost"
    """The worker was killed from outside, disappeared, or did not start."""
    FAILED = "failed"
    """The user's code or a method raised; the traceback is kept."""
    DIVERGED = "diverged"
    """The loss became NaN or infinite."""
    REFUSED = "refused"
    """A method does not apply, or the batch does not exist; nothing ran."""
    SCREENED = "screened"
    """Predicted not to fit; nothing ran."""
    INTERRUPTED = "interrupted"
    """The user stopped the search while it ran."""

    @property
    def is_by_chance(self) -> bool:
        """Whether the cause may lie outside the trial, so that the next run of the same command tries it again.

        A busy machine may be too slow, and others may kill a worker; failures of the workload itself would recur.
        """
        return self in (Outcome.TIMEOUT, Outcome.LOST)


_FAULTS = frozenset(
    (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)
"""Signals that a process causes itself."""


def outcome_without_result(status: int | None) -> Outcome:
    """The outcome of a trial whose process ended without a result.

    Args:
        status: Exit status, or minus the number of the signal that ended it; ``None`` if unknown.
    """
    if status is None or (status < 0 and -status not in _FAULTS):
        return Outcome.LOST
    return Outcome.CRASHED


def status_of(process: int) -> int | None:
    """The exit status of a child, without reaping it, so that its ID stays valid; ``None`` while it runs."""
    ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def how_it_ended(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
