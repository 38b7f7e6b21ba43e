"""What other processes take of the cores and GPUs that this process may use, while a moment passes.

The kernel counts the work of every core (``/proc/stat``), also for processes that a container does not show, so all
that this process and its descendants did not do is somebody else's. Under a CPU quota, cores that others use beyond it
cost nothing; what others of the same control group use does. Where nothing is counted, as in some sandboxes, pressure
stall information tells how often a task waited for a core. Of a GPU, NVML tells how much of the time a kernel ran.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil

from advisor.hardware.gpus import list_gpus
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.host import group_seconds, host_cores
from advisor.text.units import format_count, format_percent

__all__ = ["Load", "Moment", "cores_taken", "moment", "other_load"]

_SECONDS = 0.5
_WORKING = ("user", "nice", "system", "irq", "softirq", "steal")
"""Kinds of time in which a core is not free for this process: ``steal`` is what the host gave to other machines."""

_IDLE_SHARE = 0.1
"""Of cores, or of a GPU's time: what an idle machine may do by itself."""
_IDLE_CORES = 0.25
"""On few cores: the work of the system itself."""

_NAMED_FROM = 0.05
_MOST_NAMED = 3
_LONGEST_NAME = 24


class Load(NamedTuple):
    """What others take.

    Attributes:
        busy_cores: Of the cores that this process may use, how many others keep busy.
        cores: How many it may use.
        gpus: GPU -> share of the time in which others run kernels; without those that do not tell.
        names: The busiest processes that can be seen, with the share of a core or GPU.
    """

    busy_cores: float
    cores: int
    gpus: Mapping[str, float] = MappingProxyType({})
    names: tuple[str, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether a measurement is not disturbed."""
        few_cores = self.busy_cores < max(_IDLE_CORES, _IDLE_SHARE * self.cores)
        return few_cores and all(share < _IDLE_SHARE for share in self.gpus.values())

    @property
    def words(self) -> str:
        """What is busy, and by whom."""
        words = [f"{name} is {format_percent(share)} busy" for name, share in self.gpus.items() if share >= _IDLE_SHARE]
        if not words or self.busy_cores >= max(_IDLE_CORES, _IDLE_SHARE * self.cores):
            by = f" ({', '.join(self.names)})" if self.names else ""
            of = format_count(self.cores, "core")
            words.insert(0, f"other processes keep {self.busy_cores:.1f} of {of} busy{by}")
        return "; ".join(words)


class Moment(NamedTuple):
    """Counters, all in seconds.

    Attributes:
        clock: Time.
        working: Work of all cores that this process may run on.
        counted: Their work and idleness; stays 0 where the kernel does not count.
        own: Work of this process and its descendants.
        group: Work of the control group that limits it, if one does.
        waited: Time in which some task waited for a core.
        processes: (process id, start) -> name and work of every other process that can be seen.
    """

    clock: float
    working: float
    counted: float
    own: float
    group: float | None = None
    waited: float = 0.0
    processes: Mapping[tuple[int, float], tuple[str, float]] = MappingProxyType({})


def other_load(hardware: Hardware, *, devices: int = 1, seconds: float = _SECONDS, nvml: Any = None) -> Load:
    """Watch for some time what other processes do. On a GPU, this process's own workers must be idle meanwhile.

    Args:
        hardware: The device to train on.
        devices: How many of them may train together.
        seconds: How long to watch.
        nvml: The ``pynvml`` module, or something that behaves like it.
    """
    before = moment()
    time.sleep(seconds)
    after, cores = moment(), host_cores()
    taken = cores_taken(before, after, affinity=_affinity(), cores=cores)
    gpus = _gpu_shares(hardware, devices, nvml) if hardware.kind is DeviceKind.CUDA else {}
    return Load(busy_cores=taken, cores=cores, gpus=gpus, names=_busiest(before, after))


def cores_taken(before: Moment, after: Moment, *, affinity: int, cores: int) -> float:
    """How many of the cores that this process may use others kept busy between two moments.

    Args:
        before: The first.
        after: The second.
        affinity: Cores that it may run on.
        cores: How many of these it may use at a time: fewer under a quota.
    """
    span = max(1e-9, after.clock - before.clock)
    own = max(0.0, after.own - before.own)
    if after.counted <= before.counted:  # The kernel counts nothing here.
        return min(cores, cores * max(0.0, after.waited - before.waited) / span)
    free = affinity - max(0.0, after.working - before.working - own) / span
    taken = cores - free
    if before.group is not None and after.group is not None:
        taken = max(taken, (after.group - before.group - own) / span)
    return min(max(0.0, taken), float(cores))


def moment(pressure: Path = Path("/proc/pressure/cpu")) -> Moment:
    """Read all counters."""
    allowed = _allowed()
    every = psutil.cpu_times(percpu=True)
    cores = [one for number, one in enumerate(every) if allowed is None or number in allowed]
    own = _own_processes()
    return Moment(
        clock=time.monotonic(),
        working=sum(getattr(one, kind, 0.0) for one in cores for kind in _WORKING),
        counted=sum(sum(one[:8]) for one in cores),
        own=sum(_work(one, reaped=True) for one in own),
        group=group_seconds(),
        waited=_waited(pressure),
        processes=dict(_others({one.pid for one in own})),
    )


def _allowed() -> set[int] | None:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _affinity() -> int:
    allowed = _allowed()
    return (os.cpu_count() or 1) if allowed is None else len(allowed)


def _own_processes() -> list[psutil.Process]:
    own = psutil.Process()
    with contextlib.suppress(psutil.Error):
        return [own, *own.children(recursive=True)]
    return [own]


def _work(process: psutil.Process, *, reaped: bool) -> float:
    """Seconds of work; with those of the children that have ended, if asked."""
    try:
        return sum(process.cpu_times()[: 4 if reaped else 2])
    except psutil.Error:  # ended, or not ours to look at
        return 0.0


def _others(own: set[int]) -> Iterator[tuple[tuple[int, float], tuple[str, float]]]:
    for process in psutil.process_iter():
        if process.pid not in own:
            with contextlib.suppress(psutil.Error):
                yield (process.pid, process.create_time()), (process.name(), _work(process, reaped=False))


def _busiest(before: Moment, after: Moment) -> tuple[str, ...]:
    span = max(1e-9, after.clock - before.clock)
    shares: dict[str, float] = {}
    for key, (name, work) in after.processes.items():
        share = (work - before.processes.get(key, (name, work))[1]) / span
        shares[name[:_LONGEST_NAME]] = shares.get(name[:_LONGEST_NAME], 0.0) + share
    first = sorted(shares.items(), key=lambda one: -one[1])[:_MOST_NAMED]
    return tuple(f"{name} {format_percent(share)}" for name, share in first if share >= _NAMED_FROM)


def _waited(path: Path) -> float:
    """Seconds in which some task waited for a core; 0 if the kernel does not tell."""
    try:
        words = path.read_text().split()
    except OSError:
        return 0.0
    totals = [word.removeprefix("total=") for word in words if word.startswith("total=")]
    return int(totals[0]) / 1e6 if totals and totals[0].isdigit() else 0.0


def _gpu_shares(hardware: Hardware, devices: int, nvml: Any) -> dict[str, float]:
    """GPU -> share of the last moment in which a kernel ran there, for each that may train."""
    nvml = importlib.import_module("pynvml") if nvml is None else nvml
    wanted = range(devices) if devices > 1 else (int(hardware.device.partition(":")[2] or 0),)
    gpus = [one for one in list_gpus(nvml).gpus if one.index in wanted]
    shares: dict[str, float] = {}
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        try:
            for gpu in gpus:
                with contextlib.suppress(nvml.NVMLError):  # an instance of a divided GPU does not tell
                    used = nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode()))
                    shares[f"GPU {gpu.index}"] = used.gpu / 100
        finally:
            nvml.nvmlShutdown()
    return shares
