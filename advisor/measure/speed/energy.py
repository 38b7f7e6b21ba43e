"""Energy of a GPU by its own counter, and the memory that NVML sees; both ``None`` where the driver has no answer."""

from __future__ import annotations

import contextlib
import os
from typing import Any

__all__ = ["EnergyMeter", "NvmlDevice"]

_LEAST_SECONDS = 0.5
"""The counter is refreshed every 20 to 100 ms: a shorter stretch is mostly the luck of where the refreshes fall."""

_KINDS = ("GPU", "MIG")
"""CUDA does not tell whether an identifier is of a whole GPU or of a MIG instance; NVML wants to know."""


class NvmlDevice:
    """One GPU, or one MIG instance, as the NVIDIA management library (or ``library``) sees it.

    It is found by the identifier that CUDA tells, such as ``"5a1f..."``: indices differ between CUDA and NVML.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        if library is None:
            import pynvml

            library = pynvml
        self._library = library
        self._handle: Any = None
        try:
            library.nvmlInit()
        except library.NVMLError:  # no driver: values are None, as documented
            return
        for kind in _KINDS:
            with contextlib.suppress(library.NVMLError):
                self._handle = library.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
                break

    def used_bytes(self) -> int | None:
        """Memory of the device in use by this process, its CUDA context included.

        ``None`` inside containers whose process numbers differ from the driver's, and where a process may not see them.
        """
        processes = self._asked("nvmlDeviceGetComputeRunningProcesses") or ()
        return next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)

    def energy_joules(self) -> float | None:
        """Energy since the driver was loaded; ``None`` before the Volta generation, and for a part of a GPU."""
        is_in_parts, _ = self._asked("nvmlDeviceGetMigMode") or (0, 0)
        # In MIG mode the counter is that of all instances.
        millijoules = None if is_in_parts else self._asked("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else float(millijoules) / 1000

    def _asked(self, question: str) -> Any:
        """The answer of a function of the library about this device; ``None`` if there is none."""
        if self._handle is not None:
            with contextlib.suppress(self._library.NVMLError):
                return getattr(self._library, question)(self._handle)
        return None


class EnergyMeter:
    """Energy between two moments; of a CPU (``None``) it is unknown: it has no counter that every user may read."""

    def __init__(self, device: NvmlDevice | None) -> None:
        self._device = device
        self._start: float | None = None

    def start(self) -> None:
        """Begin to count."""
        self._start = self._device.energy_joules() if self._device else None

    def joules(self, seconds: float) -> float | None:
        """Energy since :meth:`start`, of steps that took so many seconds; ``None`` below 0.5 s."""
        if self._device is None or self._start is None or seconds < _LEAST_SECONDS:
            return None
        now = self._device.energy_joules()
        return None if now is None else now - self._start
