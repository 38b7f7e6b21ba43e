"""How a trial ended: always one of these, never a guess from its output."""

from __future__ import annotations

import enum
import signal

__all__ = ["Outcome", "how_it_ended"]


class Outcome(enum.Enum):
    """Set from the child's result file or exit status, never by reading what it printed."""

    OK = "ok"
    COMPARED = "compared"
    """Held against plain training by short steps in turn, which showed that it need not be timed at length."""
    OUT_OF_MEMORY = "out of memory"
    """The device's memory, or the memory limit, was exceeded."""
    HOST_OUT_OF_MEMORY = "host out of memory"
    """Host memory ran out (the kernel ended the worker, or a host allocation failed)."""
    TIMEOUT = "timeout"
    """The trial's time limit passed; its process group was ended."""
    CRASHED = "crashed"
    """The worker ended without a result: signal, ``os._exit``, or a broken channel."""
    FAILED = "failed"
    """The user's code or a method raised; the traceback is kept."""
    DIVERGED = "diverged"
    """The loss became NaN or infinite."""
    REFUSED = "refused"
    """A method does not apply, or there is no such batch; nothing ran."""
    SCREENED = "screened"
    """Predicted not to fit; nothing ran."""
    INTERRUPTED = "interrupted"
    """The user stopped the search while it ran."""


def how_it_ended(status: int) -> str:
    """How a process ended, in words.

    Args:
        status: Exit status, or minus the number of the signal that ended it.
    """
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
