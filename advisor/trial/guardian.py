"""The small process between parent and worker that ensures that nothing outlives a trial.

It forks the worker before any library is loaded, then only waits. When the parent ends, for whatever reason, it ends
the worker and everything the user's model started, even in other sessions. When the worker ends, it ends all remaining
processes and tells the parent how the worker ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

import psutil

from advisor.trial.protocol import Exited, encode_line

__all__ = ["adopt_orphans", "end_with_parent", "guard"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 1.0
_LOOK_SECONDS_WITHOUT_PIDFD = 0.05


def guard(answers: int, lifeline: int, closed_in_guardian: int) -> None:
    """Split into guardian and worker; returns in the worker only.

    Args:
        answers: Where to tell the parent that the worker has ended.
        lifeline: A pipe held open only by the parent: it closes when the parent ends.
        closed_in_guardian: A descriptor that only the worker needs.
    """
    parent = os.getppid()
    adopt_orphans()
    worker = os.fork()
    if worker == 0:
        _become_worker(lifeline)
        return
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # sent to the whole group by the model, say: we end last
    os.close(closed_in_guardian)
    status = _wait(worker, lifeline, parent)
    _end_descendants()
    if status is not None:
        with contextlib.suppress(BrokenPipeError):  # the parent has just gone away
            os.write(answers, encode_line(Exited(status=status)))
    os._exit(0)


def adopt_orphans() -> None:
    """Make this process, not init, adopt orphans of the model's processes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _become_worker(lifeline: int) -> None:
    guardian = os.getppid()
    os.close(lifeline)
    end_with_parent(guardian)
    # Python would raise it in the user's model, as an error of its own: an end from outside is seen to be one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        # If memory runs out, the kernel shall pick this process. Where that is not permitted it goes by size, which
        # in practice means this process as well.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def end_with_parent(parent: int) -> None:
    """Make the kernel end this process when its parent ends, for whatever reason (Linux only)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the line above
        os._exit(1)


def _wait(worker: int, lifeline: int, parent: int) -> int | None:
    """Wait for the worker's end, and return its status; or for the parent's, and return ``None``."""
    watched = [lifeline]
    pause = _LOOK_SECONDS_WITHOUT_PIDFD
    if hasattr(os, "pidfd_open"):
        watched.append(os.pidfd_open(worker))
        pause = _LOOK_SECONDS
    while True:
        ready, _, _ = select.select(watched, [], [], pause)
        status = _reap(worker)
        if status is not None:
            return status
        # Another child of the parent may have inherited the lifeline and keep it open.
        if lifeline in ready or os.getppid() != parent:
            return None


def _reap(worker: int) -> int | None:
    """Reap every child that has ended; return the worker's status if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):  # no child is left
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            if process == worker:
                found = os.waitstatus_to_exitcode(status)
    return found


def _end_descendants() -> None:
    """End every descendant, repeatedly until none is left, as new ones may have been started."""
    me = psutil.Process()
    while children := me.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        _reap(0)
        time.sleep(0.01)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
