"""The host as the operating system and the container describe it: memory, cores, the CPU's name."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

import psutil

__all__ = ["HostMemory", "cpu_name", "group_seconds", "host_cores", "host_fields", "host_memory"]

_UNLIMITED = 1 << 60
"""cgroup v1 reports a huge number if no limit is set."""


class HostMemory(NamedTuple):
    """Host memory: the machine's, or the container's limit if lower, and what is available now without swapping."""

    total_bytes: int
    free_bytes: int


def host_memory(cgroups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> HostMemory:
    """Read host memory, under the limits of the control groups (v2 and v1) that this process is in."""
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    second = [(folder, "max", "current") for folder in _groups(cgroups, process, "")]
    first = [(folder, "limit_in_bytes", "usage_in_bytes") for folder in _groups(cgroups, process, "memory")]
    for folder, limit_name, usage_name in second + first:
        limit, usage = _number(folder / f"memory.{limit_name}"), _number(folder / f"memory.{usage_name}")
        if limit is None or limit >= min(_UNLIMITED, memory.total):
            continue
        total = min(total, limit)
        if usage is not None:
            free = min(free, max(0, limit - usage + _reclaimable(folder)))
    return HostMemory(total_bytes=total, free_bytes=min(free, total))


def host_cores(cgroups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> int:
    """Cores that this process may use: its affinity, or less by the container's CPU quota (rounded down)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    for folder in _groups(cgroups, process, ""):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            cores = min(cores, int(words[0]) // int(words[1]))
    for name in ("cpu", "cpu,cpuacct"):
        for folder in _groups(cgroups, process, name):
            quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                cores = min(cores, quota // period)
    return max(1, cores)


def group_seconds(cgroups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> float | None:
    """Seconds that the control group with this process's CPU quota has worked so far; ``None`` without a quota."""
    for folder in _groups(cgroups, process, ""):
        if _text(folder / "cpu.max").split()[:1] not in ([], ["max"]):
            for line in _text(folder / "cpu.stat").splitlines():
                if line.startswith("usage_usec "):
                    return int(line.split()[1]) / 1e6
    for name in ("cpu", "cpu,cpuacct"):
        for folder in _groups(cgroups, process, name):
            used = _number(folder / "cpuacct.usage")  # where both are in one hierarchy, as they are nearly everywhere
            if (_number(folder / "cpu.cfs_quota_us") or 0) > 0 and used is not None:
                return used / 1e9
    return None


def host_fields() -> dict[str, Any]:
    """What :class:`~advisor.hardware.hardware.Hardware` says of the host."""
    memory = host_memory()
    return {"host_memory_bytes": memory.total_bytes, "host_free_bytes": memory.free_bytes, "host_cores": host_cores()}


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model name, or its architecture if unknown."""
    for line in _text(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "CPU"


def _groups(cgroups: Path, process: Path, controller: str) -> list[Path]:
    """The folder of this process's group and of every group above it: the tightest limit holds.

    The file ``process`` has a line ``id:controllers:path`` for each; ``controller`` is empty for version 2.
    """
    mount = cgroups / controller if controller else cgroups
    group = None
    for line in _text(process).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            group = path.strip("/")
    if group is None:
        return []
    folder = mount / group
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]


def _text(path: Path) -> str:
    """Content of a kernel file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _reclaimable(folder: Path) -> int:
    """The inactive page cache: it counts as usage, but the kernel gives it back before it ends a process.

    Version 1 has one line for the group itself and one for the total, which is larger.
    """
    lines = (line.partition(" ") for line in _text(folder / "memory.stat").splitlines())
    return max((int(value) for name, _, value in lines if name in ("inactive_file", "total_inactive_file")), default=0)
