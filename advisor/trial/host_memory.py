"""Evidence that the kernel ended a process because host memory ran out: read from its counters, not guessed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

__all__ = ["OutOfMemoryEvidence"]

_LOW_SHARE = 0.03


class OutOfMemoryEvidence:
    """Watches for signs of the kernel's out-of-memory killer since its creation."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._counts = self._kills()
        self._lowest_share = 1.0

    def look(self) -> None:
        """Record the available memory; call it regularly while a trial runs."""
        memory = psutil.virtual_memory()
        self._lowest_share = min(self._lowest_share, memory.available / memory.total)

    def found(self) -> bool:
        """Whether a kill was counted since the creation, or recorded memory was nearly exhausted."""
        return self._kills() != self._counts or self._lowest_share < _LOW_SHARE

    def _kills(self) -> dict[str, int]:
        """Counters of kills: of the whole system and of our control groups, by file."""
        counts = {}
        for path in (self._root / "proc/vmstat", *self._group_files()):
            with contextlib.suppress(OSError):  # depends on the kernel and on the version of control groups
                for line in path.read_text().splitlines():
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        counts[str(path)] = int(value)
        return counts

    def _group_files(self) -> list[Path]:
        files = []
        with contextlib.suppress(OSError):
            for line in (self._root / "proc/self/cgroup").read_text().splitlines():
                _, controllers, group = line.split(":", 2)
                if not controllers:
                    files.append(self._root / "sys/fs/cgroup" / group.lstrip("/") / "memory.events")
                elif "memory" in controllers.split(","):
                    files.append(self._root / "sys/fs/cgroup/memory" / group.lstrip("/") / "memory.oom_control")
        return files
