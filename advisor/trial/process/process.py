"""The parent's handle on a guardian process, however it was started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from advisor.trial.outcome import status_of

__all__ = ["Process", "Start", "execute"]

_POLL_SECONDS = 0.01


class Process(Protocol):
    """A process that leads its own session; its ID stays valid until it is ended here."""

    def status(self) -> int | None:
        """The exit status, or minus the number of the signal that ended it; ``None`` while it runs."""

    def end(self, seconds: float) -> bool:
        """Kill what is left of its group and reap it; return whether it ended in time."""


Start = Callable[[Mapping[str, int], int], Process]
"""Starts a process, given name of an argument -> descriptor whose number it passes, and a descriptor for output."""


def execute(command: Sequence[str], environment: Mapping[str, str]) -> Start:
    """Start processes by executing a program."""

    def start(descriptors: Mapping[str, int], output: int) -> Process:
        return _Executed(
            subprocess.Popen(
                [*command, *(f"{name}={one}" for name, one in descriptors.items())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=tuple(descriptors.values()),
                env=dict(environment),
                start_new_session=True,
            )
        )

    return start


class _Executed:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def status(self) -> int | None:
        """Without reaping it where possible."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll()
        return status_of(self._process.pid)

    def end(self, seconds: float) -> bool:
        """Kill the group while its ID is still valid, then reap."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True
