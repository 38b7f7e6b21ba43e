"""The command's side of an arm: start its process, request steps, and end it in every case."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec
import psutil

from advisor.trial.guardian import end_with_parent
from benchmarks.minutes.protocol import ArmRequest, Lost, Ready, Reply, Turned
from benchmarks.minutes.settings import UNTOUCHED

__all__ = ["Arm", "ArmLostError"]

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "from benchmarks.minutes.arm import main; main()"
_END_SECONDS = 10.0
_CHUNK_BYTES = 2**16


class ArmLostError(Exception):
    """An arm cannot train or stopped training; the message gives the reason."""


class Arm:
    """A training in its own process, ready to make steps.

    Args:
        request: What to train.
        environment: Environment of the process.
        ready_seconds: Time limit until it is ready.
        turn_seconds: Time limit of a turn.

    Attributes:
        batch: Samples per step.
        step_seconds: Its fastest step during warm-up.

    Raises:
        ArmLostError: It did not become ready.
    """

    def __init__(
        self, request: ArmRequest, *, environment: Mapping[str, str], ready_seconds: float, turn_seconds: float
    ) -> None:
        # In a comparison, readers would attribute the reason to the other arm.
        self._whose = "untouched: " if request.setting == UNTOUCHED else ""
        self._turn_seconds = turn_seconds
        self._received = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
            env=dict(environment),
            preexec_fn=functools.partial(end_with_parent, os.getpid()),  # however this command ends
        )
        try:
            self._tell(msgspec.json.encode(request))
            ready = self._reply(ready_seconds, "to get ready")
            assert isinstance(ready, Ready), ready
        except BaseException:
            self.close()
            raise
        self.batch = ready.batch
        self.step_seconds = ready.step_seconds

    def __enter__(self) -> Arm:
        """It has been ready since it was constructed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self.close()

    def turn(self, steps: int) -> float:
        """Make steps and return the seconds they took.

        Raises:
            ArmLostError: The steps could not be made.
        """
        self._tell(msgspec.json.encode(steps))
        turned = self._reply(self._turn_seconds, "for a turn")
        assert isinstance(turned, Turned), turned
        return turned.seconds

    def close(self) -> None:
        """End the process and everything it has started."""
        below: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for one in below:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(below, timeout=_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it has not read the last request
                pipe.close()
        self._errors.close()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its last message, or its exit status, is read next
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def _reply(self, seconds: float, what: str) -> Reply:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise ArmLostError(f"{self._whose}it took longer {what} than {seconds:g} s")
            chunk = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
            if not chunk:
                raise ArmLostError(self._whose + self._how_it_ended())
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        reply: Reply = msgspec.json.decode(line, type=Reply)
        if isinstance(reply, Lost):
            raise ArmLostError(self._whose + reply.reason)
        return reply

    def _how_it_ended(self) -> str:
        status = self._process.wait()
        if status == -signal.SIGKILL:
            return "it was killed: the machine was out of memory, most likely"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"exit status {status}: {lines[-1] if lines else 'it said nothing'}"
