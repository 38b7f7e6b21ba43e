"""Notes on other processes that keep the device busy and would distort measurements."""

from __future__ import annotations

import math
import os

from advisor.hardware.contention import Load, other_load
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.text.ranges import digits

__all__ = ["notes_on_load"]

_BUSY = 0.5
"""Cores that others may keep busy without a note."""

_SECONDS = 0.2


def notes_on_load(hardware: Hardware, load: Load | None = None) -> list[str]:
    """Notes for the user before anything is measured; empty if nothing else runs."""
    if load is None:
        load = other_load(hardware, seconds=_SECONDS)
    if hardware.kind is not DeviceKind.CPU:
        busy = load._replace(busy_cores=0.0, names=())
        return [] if busy.is_idle else [f"{busy.words}: measurements will be noisy (--wait-idle waits)"]
    if load.busy_cores < _BUSY:
        return []
    left = max(1, math.floor(load.cores - load.busy_cores + 0.5))
    note = f"{load.words}: measurements will be noisy (--wait-idle waits)"
    threads = digits(os.environ.get("OMP_NUM_THREADS", ""))
    if threads is None or threads > left:
        note += (
            f"; threads that wait for each other beside them can make a step many times slower: set OMP_NUM_THREADS="
            f"{left}, or measure when the machine is idle"
        )
    return [note]
