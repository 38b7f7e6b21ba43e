"""The parent's handle on a worker process: start, send, receive with a deadline, end it with all its children."""

from __future__ import annotations

import os
import select
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

from advisor.errors import TrialError
from advisor.text.records import DamagedError, decode_record
from advisor.trial.folder import writing
from advisor.trial.process.interruption import look_for_interruption
from advisor.trial.process.process import Start
from advisor.trial.protocol import Answer, Exited, LineReader, Request, encode_line

__all__ = ["WORKER_COMMAND", "Connection", "SilenceError", "child_environment"]

WORKER_COMMAND = (sys.executable, "-P", "-u", "-m", "advisor.trial.worker_main")
"""``-P``: a file in the current directory must not shadow a library."""

_GUARDIAN_SECONDS = 5.0
_ENDING_SECONDS = 60.0
"""A killed process ends once the driver has freed its GPU and page-locked memory, which takes seconds for tens of GiB;
the next worker needs all of it free."""
_POLL_SECONDS = 0.2


class SilenceError(Exception):
    """The deadline passed without an answer."""


def child_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: the parent's, plus the path to this package.

    Sets nothing that tunes an allocator or a library: trials run as the user's own training will.
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
    """A running worker with its guardian, in their own process session."""

    def __init__(self, start: Start, log: Path) -> None:
        request_read, self._requests = os.pipe()
        self._answers, answer_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        given = {"--requests": request_read, "--answers": answer_write, "--lifeline": lifeline_read}
        try:
            with writing(log):
                output = log.open("ab")
            with output:
                self._process = start(given, output.fileno())
        except BaseException:
            for descriptor in (self._requests, self._answers, self._lifeline):
                os.close(descriptor)
            raise
        finally:
            for descriptor in given.values():
                os.close(descriptor)
        self._reader = LineReader(self._answers)
        self._received: list[Answer] = []
        self._closed = False

    def send(self, request: Request) -> None:
        """Send the request for a trial.

        Raises:
            BrokenPipeError: The worker has ended.
        """
        line = encode_line(request)
        while line:
            line = line[os.write(self._requests, line) :]

    def receive(self, deadline: float) -> Answer:
        """Receive the next answer; :class:`Exited` if the worker has ended, even if its guardian has too.

        Raises:
            SilenceError: Nothing came.
            KeyboardInterrupt: The user interrupted, now or earlier where Python lost the exception.
        """
        while not self._received:
            look_for_interruption()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise SilenceError
            ready, _, _ = select.select([self._answers], [], [], min(remaining, _POLL_SECONDS))
            if ready:
                lines = self._reader.read()
                if lines is None:
                    return Exited(status=self._guardian_status())
                self._received += [_decode(line) for line in lines]
            elif self._process.status() is not None:
                return Exited(status=self._guardian_status())
        return self._received.pop(0)

    def end(self) -> None:
        """End the worker, its guardian and everything below them; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        os.close(self._lifeline)  # makes the guardian end all descendants, also in other sessions
        os.close(self._requests)
        deadline = time.monotonic() + _ENDING_SECONDS
        while self._process.status() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        ended = self._process.end(_ENDING_SECONDS)  # and whatever a dead guardian left in its group
        os.close(self._answers)
        if not ended:
            raise TrialError("a worker must end when it is killed, but its guardian does not")

    def _guardian_status(self) -> int:
        deadline = time.monotonic() + _GUARDIAN_SECONDS
        while (status := self._process.status()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return status or 0  # if it lives but has closed its pipe it is as good as gone


def _decode(line: bytes) -> Answer:
    try:
        answer: Answer = decode_record(line, Answer)
    except DamagedError:
        # Only worker and guardian know this pipe: the user's code wrote to a descriptor that it does not own.
        return Exited(status=0)
    return answer
