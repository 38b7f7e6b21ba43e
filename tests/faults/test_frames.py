"""Readers of what processes say to each other: somebody else's code may write into a pipe that it does not own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from advisor.trial.outcome import Outcome
from advisor.trial.process.connection import Connection, SilenceError
from advisor.trial.protocol import Answer, Exited, Finished, Joined, Progress, Ready, Reported, Unwritten, encode_line
from advisor.trial.ranks.rank_group import Death, RankGroup
from advisor.trial.result import TimeResult

from .hostile import damaged, texts

LINES = [
    encode_line(message)
    for message in (
        Ready(),
        Progress(text="é"),
        Finished(key="k", clean=True),
        Unwritten(reason="full"),
        Exited(status=-9),
        Joined(),
        Reported(result=TimeResult(key="k", outcome=Outcome.FAILED, reason="x")),
    )
]
frames = st.sampled_from(LINES).flatmap(damaged).map(lambda data: data[:60_000] + b"\n")


class StillThere:
    """A process that does nothing."""

    def status(self) -> int | None:
        return None

    def end(self, seconds: float) -> bool:
        return True


class EndsAtOnce(StillThere):
    def status(self) -> int | None:
        return 0


@given(frames)
def test_a_worker_that_says_anything_is_heard_or_taken_to_have_ended(tmp_path: Path, frame: bytes) -> None:
    process = StillThere()

    def start(given: Mapping[str, int], output: int) -> StillThere:
        os.write(given["--answers"], frame)
        return process

    connection = Connection(start, tmp_path / "log.txt")
    try:
        for _ in range(frame.count(b"\n")):
            assert isinstance(connection.receive(time.monotonic() + 5.0), Answer)
    except SilenceError as error:
        raise AssertionError(f"{frame[:80]!r} was not heard") from error
    finally:
        process.status = EndsAtOnce().status  # type: ignore[method-assign]
        connection.end()


@given(frames)
def test_a_rank_that_says_anything_is_heard_or_lost(frame: bytes) -> None:
    here, there = socket.socketpair()
    read, write = os.pipe()
    group = RankGroup({0: here}, {}, read)
    try:
        there.sendall(frame)
        there.close()
        news: list[object] = []
        deadline = time.monotonic() + 10.0
        while not any(isinstance(message, Death) for message in news) and time.monotonic() < deadline:
            news += [message for _, message in group.receive(deadline)[0]]
        assert isinstance(news[-1], Death)
        assert all(isinstance(message, msgspec.Struct) for message in news)
    finally:
        group.close()
        os.close(read)
        os.close(write)


@given(texts, texts)
def test_every_message_is_one_line_whatever_its_texts_are(one: str, other: str) -> None:
    for message in (
        Progress(text=one),
        Unwritten(reason=one),
        Finished(key=other, clean=False),
        Reported(result=TimeResult(key=one, outcome=Outcome.FAILED, reason=other, traceback_text=one)),
    ):
        line = encode_line(message)
        assert line.index(b"\n") == len(line) - 1
        assert isinstance(msgspec.json.decode(line, type=type(message)), type(message))
