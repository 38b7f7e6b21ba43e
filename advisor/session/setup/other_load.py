"""Notes on what makes measurements say less: other processes that keep the device busy, a device in software."""

from __future__ import annotations

import math
import os

from advisor.hardware.contention import Load, other_load
from advisor.hardware.detect import SIMULATED
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.text.ranges import digits

__all__ = ["notes_on_device", "notes_on_load"]

_BUSY = 0.5
"""Cores that others may keep busy without a note."""

_SECONDS = 0.2


def notes_on_device(hardware: Hardware) -> list[str]:
    """A note where software stands in for the device."""
    says = f"the device is simulated (by {SIMULATED}): no speed or cost here is one of a real device"
    return [says] if hardware.simulated else []


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
