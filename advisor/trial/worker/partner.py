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

__all__ = ["Answer", "Message", "NoPartnerError", "Partner"]

_LONGEST_ANSWER_SECONDS = 300.0
"""After this time the partner is abandoned; the trial's own limits are usually shorter."""


class NoPartnerError(Exception):
    """There is nothing to alternate with; the message says why."""


class Message(msgspec.Struct, frozen=True):
    """Make steps for this many seconds, at least one; without seconds only build the training, without a spec free it.

    Its number is one that no other message has.
    """

    number: int
    spec: ComparedSpec | None = None
    seconds: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """Seconds per step in the long run (0 if none was made), or why there are none.

    The number is the message's, so that a late answer is not taken for that to the next trial's message. Page faults
    are those of a step, if the system counts them.
    """

    number: int
    step_seconds: float = 0.0
    page_faults: float | None = None
    failure: str = ""


class Partner:
    """Handle on the partner process for the worker and the trials forked from it.

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
        """Build the training in the background; the next turn waits for it, and says if that failed."""
        with contextlib.suppress(OSError):
            self._channel.sendall(encode_line(Message(time.monotonic_ns(), spec)))

    def turn(self, spec: ComparedSpec, seconds: float) -> Answer:
        """Let it step for some seconds, at least once.

        Raises:
            NoPartnerError: It cannot step.
        """
        return self._asked(Message(time.monotonic_ns(), spec, seconds))

    def rest(self) -> None:
        """Make it free its memory."""
        with contextlib.suppress(NoPartnerError):
            self._asked(Message(time.monotonic_ns()))

    def end(self) -> None:
        """End the process; to be called only by the worker that forked it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)

    def _asked(self, message: Message) -> Answer:
        last_words = ""
        with contextlib.suppress(OSError):  # it has ended, perhaps not without a word
            self._channel.sendall(encode_line(message))
        deadline = time.monotonic() + _LONGEST_ANSWER_SECONDS
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._channel], [], [], left)[0]:
                raise NoPartnerError(f"no answer came within {_LONGEST_ANSWER_SECONDS:g} s")
            lines = None
            with contextlib.suppress(OSError):
                lines = self._reader.read()
            if lines is None:
                raise NoPartnerError(last_words or "the process beside it has ended")
            try:
                answers: list[Answer] = [decode_record(line, Answer) for line in lines]
            except DamagedError as error:
                raise NoPartnerError(f"the process beside it says what nobody understands: {error}") from error
            for answer in answers:
                last_words = answer.failure or last_words
                if answer.number == message.number:
                    if answer.failure:
                        raise NoPartnerError(answer.failure)
                    return answer
