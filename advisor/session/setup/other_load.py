"""Detect other processes that keep a CPU busy and would distort its measurements."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import psutil

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.host import host_cores
from advisor.text.ranges import digits

__all__ = ["busy_cores", "notes_on_load"]

_BUSY = 0.5
"""Cores that others may keep busy without a note."""

_SECONDS = 0.2
_WORKING = ("user", "nice", "system", "irq", "softirq")
"""Kinds of time in which a core works."""


def notes_on_load(hardware: Hardware, busy: Callable[[], float] | None = None) -> list[str]:
    """Notes for the user before a CPU is measured; empty for a GPU, and if nothing else runs."""
    if hardware.kind is not DeviceKind.CPU:
        return []
    others = (busy or busy_cores)()
    if others < _BUSY:
        return []
    left = max(1, math.floor(hardware.host_cores - others + 0.5))
    note = f"other processes keep {others:.1f} of {hardware.host_cores} cores busy: measurements will be noisy"
    threads = digits(os.environ.get("OMP_NUM_THREADS", ""))
    if threads is None or threads > left:
        note += (
            f"; threads that wait for each other beside them can make a step many times slower: set OMP_NUM_THREADS="
            f"{left}, or measure when the machine is idle"
        )
    return [note]


def busy_cores(seconds: float = _SECONDS) -> float:
    """Cores of this machine that other processes keep busy; 0 if unknown."""
    if psutil.cpu_count() != host_cores():
        return 0.0  # In a container limited to some cores, the cores that others use are unknown.
    own = psutil.Process()
    begin, before, own_before = time.monotonic(), _worked(), sum(own.cpu_times()[:2])
    time.sleep(seconds)
    worked = _worked() - before - (sum(own.cpu_times()[:2]) - own_before)
    return max(0.0, worked / (time.monotonic() - begin))


def _worked() -> float:
    times = psutil.cpu_times()
    return float(sum(getattr(times, kind, 0.0) for kind in _WORKING))
