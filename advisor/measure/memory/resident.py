"""Peak of the memory that a process holds, as the system counts it."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["ResidentPeak"]

_PEAK = "VmHWM:"


class ResidentPeak:
    """The largest resident set from :meth:`restart` on, by this process's own entry of ``/proc``."""

    def __init__(self, root: Path = Path("/proc/self")) -> None:
        self._root = root

    def restart(self) -> None:
        """Forget what was held before; where that is not permitted, the peak is the one since the process started."""
        with contextlib.suppress(OSError):
            (self._root / "clear_refs").write_text("5")

    def peak_bytes(self) -> int | None:
        """The peak, the interpreter and its libraries included; ``None`` where the system does not tell."""
        with contextlib.suppress(OSError):
            for line in (self._root / "status").read_text().splitlines():
                if line.startswith(_PEAK):
                    return int(line.split()[1]) * 1024
        return None
