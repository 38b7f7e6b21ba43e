"""One worker process as the parent holds it: start, send, receive with a deadline, end with everything below it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from advisor.errors import TrialError
from advisor.trial.folder import writing
from advisor.trial.protocol import Answer, Exited, LineReader, Request, encode_line

__all__ = ["WORKER_COMMAND", "Connection", "SilenceError", "child_environment"]

WORKER_COMMAND = (sys.executable, "-P", "-u", "-m", "advisor.trial.worker")
"""``-P``: a file with a library's name, in the folder where the user happens to be, must not be imported instead."""

_GUARDIAN_SECONDS = 5.0
_POLL_SECONDS = 0.2


class SilenceError(Exception):
    """The deadline passed without an answer."""


def child_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: the parent's, and what it takes to find this package.

    Nothing that tunes an allocator or a library is set: trials run as the user's own training will.
    """
    environment = dict(base)
    environment["TOKENIZERS_PARALLELISM"] = "false"  # else it warns after every fork
    root = str(Path(__file__).resolve().parent.parent.parent)
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if root not in installed:  # a checkout; site-packages must not move ahead of the standard library
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([root, others] if others else [root])
    return environment


class Connection:
    """A running worker with its guardian, in a session of their own.

    Args:
        command: Program and arguments; the descriptors of the pipes are appended.
        log: File for what it prints.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        request_read, self._requests = os.pipe()
        self._answers, answer_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        given = (request_read, answer_write, lifeline_read)
        flags = [f"--requests={request_read}", f"--answers={answer_write}", f"--lifeline={lifeline_read}"]
        try:
            with writing(log):
                output = log.open("ab")
            with output:
                self._process = subprocess.Popen(
                    [*command, *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=given,
                    env=child_environment(os.environ),
                    start_new_session=True,
                )
        except BaseException:
            for descriptor in (self._requests, self._answers, self._lifeline):
                os.close(descriptor)
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)
        self._reader = LineReader(self._answers)
        self._received: list[Answer] = []
        self._closed = False

    @property
    def group(self) -> int:
        """Number of the process group: the guardian's."""
        return self._process.pid

    def send(self, request: Request) -> None:
        """Ask for a trial.

        Raises:
            BrokenPipeError: The worker is gone.
        """
        line = encode_line(request)
        while line:
            line = line[os.write(self._requests, line) :]

    def receive(self, deadline: float) -> Answer:
        """The next answer; :class:`Exited` when the worker is gone, even if nobody is left to say so.

        Args:
            deadline: Moment of ``time.monotonic`` until which to wait.

        Raises:
            SilenceError: Nothing came.
        """
        while not self._received:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise SilenceError
            ready, _, _ = select.select([self._answers], [], [], min(remaining, _POLL_SECONDS))
            if ready:
                lines = self._reader.read()
                if lines is None:
                    return Exited(status=self._guardian_status())
                self._received += [_decode(line) for line in lines]
            elif self._guardian_is_gone():
                return Exited(status=self._guardian_status())
        return self._received.pop(0)

    def end(self) -> None:
        """End the worker, its guardian and everything below them; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        os.close(self._lifeline)  # the guardian now ends all others, those in other sessions too
        os.close(self._requests)
        deadline = time.monotonic() + _GUARDIAN_SECONDS
        while not self._guardian_is_gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        # Not reaped yet, so the number still means our group: end what a dead guardian may have left in it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        os.close(self._answers)
        try:
            self._process.wait(timeout=_GUARDIAN_SECONDS)
        except subprocess.TimeoutExpired:
            raise TrialError(f"a worker must end when it is killed, but process group {self.group} does not") from None

    def _guardian_is_gone(self) -> bool:
        return self._ended() is not None

    def _guardian_status(self) -> int:
        deadline = time.monotonic() + _GUARDIAN_SECONDS
        while (status := self._ended()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return status or 0  # if it lives but has closed its pipe it is as good as gone

    def _ended(self) -> int | None:
        """The guardian's exit status, without collecting it where that is possible: then its number stays ours."""
        if not hasattr(os, "waitid"):
            return self._process.poll()
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _decode(line: bytes) -> Answer:
    try:
        answer: Answer = msgspec.json.decode(line, type=Answer)
    except msgspec.DecodeError:
        # Only the worker and the guardian know this pipe: code of the user wrote into a descriptor it does not own.
        return Exited(status=0)
    return answer
