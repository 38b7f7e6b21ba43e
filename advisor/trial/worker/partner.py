"""A training in a partner process, which alternates with the one that a trial measures.

The process is forked from the worker before anything has run there, and waits. It builds its training at the first
turn, keeps it between trials, and frees it when a trial needs the memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from advisor.text.records import DamagedError, decode_record
from advisor.trial.protocol import LineReader, encode_line
from advisor.trial.spec import ComparedSpec

__all__ = ["Answer", "Load", "Message", "NoPartnerError", "Partner", "Rest", "Turn"]


_LONGEST_ANSWER_SECONDS = 300.0
"""After this time the partner is abandoned; the trial's own limits are usually shorter."""


class NoPartnerError(Exception):
    """There is nothing to alternate with; the message says why."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Build the training without stepping."""

    number: int
    spec: ComparedSpec


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """Make steps for this many seconds, at least one."""

    number: int
    spec: ComparedSpec
    seconds: float


class Rest(msgspec.Struct, frozen=True, tag="rest"):
    """Free the training's memory."""

    number: int


Message = Load | Turn | Rest


class Answer(msgspec.Struct, frozen=True):
    """Seconds per step in the long run (0 if none was made), or why there are none.

    The number is the message's, so that a late answer is not taken for that to the next trial's message.
    """

    number: int
    step_seconds: float = 0.0
    failure: str = ""


class Partner:
    """Handle on the partner process for the worker and the trials forked from it.

    Args:
        serve: Runs in the process until the worker ends; gets the worker's process ID and the channel's other end.

    Raises:
        OSError: No process can be forked.
    """

    def __init__(self, serve: Callable[[int, socket.socket], NoReturn]) -> None:
        self._channel, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        worker = os.getpid()
        self.process = os.fork()
        if self.process == 0:
            self._channel.close()
            serve(worker, theirs)
        theirs.close()
        self._reader = LineReader(self._channel.fileno())

    def load(self, spec: ComparedSpec) -> None:
        """Build the training in the background; the next turn waits for it."""
        self._send(Load(time.monotonic_ns(), spec))

    def turn(self, spec: ComparedSpec, seconds: float) -> float:
        """Let it step for some seconds.

        Args:
            spec: A trial of the partner's policy, at the batch to step with.
            seconds: How long; at least one step is made.

        Returns:
            Seconds per step in the long run.

        Raises:
            NoPartnerError: It cannot step.
        """
        return self._asked(Turn(time.monotonic_ns(), spec, seconds)).step_seconds

    def rest(self) -> None:
        """Make it free its memory."""
        with contextlib.suppress(NoPartnerError):
            self._asked(Rest(time.monotonic_ns()))

    def end(self) -> None:
        """End the process; to be called only by the worker that forked it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)

    def _send(self, message: Message) -> None:
        try:
            self._channel.sendall(encode_line(message))
        except OSError as error:
            raise NoPartnerError(f"the process beside it is gone: {error.strerror}") from error

    def _asked(self, message: Message) -> Answer:
        self._send(message)
        deadline = time.monotonic() + _LONGEST_ANSWER_SECONDS
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._channel], [], [], left)[0]:
                raise NoPartnerError(f"no answer came within {_LONGEST_ANSWER_SECONDS:g} s")
            lines = None
            with contextlib.suppress(OSError):
                lines = self._reader.read()
            if lines is None:
                raise NoPartnerError("the process beside it has ended")
            try:
                answers: list[Answer] = [decode_record(line, Answer) for line in lines]
            except DamagedError as error:
                raise NoPartnerError(f"the process beside it says what nobody understands: {error}") from error
            for answer in answers:
                if answer.number == message.number and answer.failure:
                    raise NoPartnerError(answer.failure)
                if answer.number == message.number:
                    return answer
