"""Who runs a trial, where several workers share one study: so that the trials of a dead one do not stay open."""

from __future__ import annotations

import datetime
import itertools
import os
import re
import socket

import psutil

__all__ = ["WORKER", "is_dead", "new_worker"]

WORKER = "worker"
"""Attribute of a trial under way: who runs it."""

_UNSIGNED_SECONDS = 60
"""A trial that nobody has put a name to for so long was left by a worker that died before it could."""

_CLOCK_SECONDS = 5
"""Two processes may read the beginning of a third differently by a little: it is reckoned from the boot's time."""

_SILENT_SECONDS = 24 * 3600
"""A trial of another machine is taken to be under way for so long: whether its process lives cannot be seen."""

_NAME = re.compile(r"(.*) ([0-9]{1,9}) ([0-9]{1,15}(?:\.[0-9]{1,9})?) [0-9]+", re.ASCII)

_numbers = itertools.count()


def new_worker() -> str:
    """A name that no other worker has or will have, in this process or another."""
    return f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time()} {next(_numbers)}"


def is_dead(worker: str | None, started: datetime.datetime | None) -> bool:
    """Whether a trial's worker is gone, so that its trial will never end."""
    age = 0.0 if started is None else (datetime.datetime.now() - started).total_seconds()
    if worker is None:
        return age > _UNSIGNED_SECONDS
    name = _NAME.fullmatch(worker) if isinstance(worker, str) else None
    if name is None:  # another program wrote it
        return age > _SILENT_SECONDS
    host, process, created = name.groups()
    if host != socket.gethostname():
        return age > _SILENT_SECONDS
    try:
        return abs(psutil.Process(int(process)).create_time() - float(created)) > _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return True
