"""The processes of one run, found by what is in their environment: wherever they are, whoever their parent is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

__all__ = ["children_of", "end_all", "has_stopped", "listening_outside", "of_run", "wait_until"]

_LOOK_SECONDS = 0.02
_LOOPBACK = ("127.", "::1", "::ffff:127.")


def of_run(mark: Path) -> list[psutil.Process]:
    """Every process that has inherited an environment with this path in it, but for zombies."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            inherited = Path(f"/proc/{process.pid}/environ").read_bytes()
            if os.fsencode(mark) in inherited and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether something came to hold in so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def end_all(processes: list[psutil.Process]) -> None:
    """So that one row leaves nothing to the next."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def children_of(process: int) -> list[int]:
    """Its own, not theirs."""
    return [child.pid for child in psutil.Process(process).children()]


def has_stopped(process: int) -> bool:
    """Whether it has ended, or does nothing until it is told to go on."""
    try:
        return psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def listening_outside(processes: list[psutil.Process]) -> list[str]:
    """Addresses at which any of them listens and another machine could reach it."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN and not str(one.laddr.ip).startswith(_LOOPBACK):
                    found.append(f"{one.laddr.ip}:{one.laddr.port}")
    return found
