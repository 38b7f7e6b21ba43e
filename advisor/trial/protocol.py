"""Messages between parent and worker, and launcher and rank: one JSON object per line, on dedicated channels.

Standard input and output belong to the user's model, which may print anything or wait for input.
"""

from __future__ import annotations

import os

import msgspec

from advisor.text.records import encode_record
from advisor.trial.result import TrialResult
from advisor.trial.spec import TrialSpec

__all__ = [
    "Answer",
    "Exited",
    "Finished",
    "Hello",
    "Joined",
    "LineReader",
    "Progress",
    "RankAnswer",
    "Ready",
    "Reported",
    "Request",
    "Unwritten",
    "Welcome",
    "encode_line",
]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Parent to worker: run this trial."""

    spec: TrialSpec
    folder: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to parent: started, libraries loaded."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to parent: what it is doing, for a live display."""

    text: str


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to parent: the result file is written.

    Attributes:
        clean: Whether the worker can be reused: all memory was freed, or the trial ran in its own process.
    """

    key: str
    clean: bool


class Unwritten(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to parent: the trial's folder could not be written, so there is no result."""

    reason: str


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Guardian to parent: the worker has ended."""

    status: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A rank of another machine to the launcher: its first message.

    Attributes:
        token: The launcher's secret, known to its own ranks only.
        rank: Its number; ``None`` for the launcher of that machine.
    """

    token: str
    rank: int | None


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Launcher to a rank of another machine: accepted."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rank to launcher: connected to the others."""


class Reported(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rank to launcher: how its share of the trial ended.

    Attributes:
        clean: Whether all of its memory was freed.
        secondary: Whether it failed only because another rank disconnected.
    """

    result: TrialResult
    clean: bool = True
    secondary: bool = False


Answer = Ready | Progress | Finished | Unwritten | Exited
RankAnswer = Joined | Progress | Reported | Unwritten


def encode_line(message: msgspec.Struct) -> bytes:
    """One message as a line. Writes of short lines to a pipe are atomic, even with several writers."""
    return encode_record(message) + b"\n"


class LineReader:
    """Collects lines from a file descriptor as they arrive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def read(self) -> list[bytes] | None:
        """Read once; return the complete lines, or ``None`` at the end of the stream."""
        data = os.read(self._descriptor, 65536)
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return lines
