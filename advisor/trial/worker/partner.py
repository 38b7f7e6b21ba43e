"""Another training in a process of its own, which takes turns with the one that a trial measures.

The process is forked from the worker before anything ran there, and waits. It builds its training when it is first
asked for a turn, keeps it from trial to trial, and gives it back when a trial needs the room.
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
"""Beyond it the partner is given up; the limits of the trial itself are shorter as a rule."""


class NoPartnerError(Exception):
    """There is nothing to take turns with; its text says why."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Build the training, make no step."""

    number: int
    spec: ComparedSpec


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """Make steps for so many seconds, one at least."""

    number: int
    spec: ComparedSpec
    seconds: float


class Rest(msgspec.Struct, frozen=True, tag="rest"):
    """Give back what the training takes."""

    number: int


Message = Load | Turn | Rest


class Answer(msgspec.Struct, frozen=True):
    """What the steps that were made take in the long run, 0 if none was; or why there is none.

    The number is that of the message: an answer that a trial did not wait for is not one to the next trial's question.
    """

    number: int
    step_seconds: float = 0.0
    failure: str = ""


class Partner:
    """The process, as the worker and the trials forked from it hold it.

    Args:
        serve: Run in the process with the worker's process number and the channel's other end, until the worker ends.

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
        """Have the training built meanwhile; whoever asks for a turn waits for it."""
        self._send(Load(time.monotonic_ns(), spec))

    def turn(self, spec: ComparedSpec, seconds: float) -> float:
        """Let it step for so many seconds.

        Args:
            spec: A trial of the partner's policy, at the batch to step with.
            seconds: How long; one step is made however long it takes.

        Returns:
            Seconds per step in the long run.

        Raises:
            NoPartnerError: It cannot.
        """
        return self._asked(Turn(time.monotonic_ns(), spec, seconds)).step_seconds

    def rest(self) -> None:
        """Have it give back its memory."""
        with contextlib.suppress(NoPartnerError):
            self._asked(Rest(time.monotonic_ns()))

    def end(self) -> None:
        """End the process; only the worker that forked it does."""
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
