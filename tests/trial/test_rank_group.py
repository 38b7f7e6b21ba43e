"""What a launcher hears of ranks on other machines; those of its own are real processes elsewhere."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from advisor.trial.protocol import Hello, Joined, Progress, RankAnswer, Welcome, encode_line
from advisor.trial.ranks.door import Entrance, enter
from advisor.trial.ranks.rank_group import Death, RankGroup
from tests.trial.specs import wait_until

TOKEN = "0123456789abcdef"
WELCOME = encode_line(Welcome())


class Machine:
    """The first one of two: rank 0 is here, ranks 1 and 2 are expected."""

    def __init__(self, also: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()[:2]
        self.group = RankGroup({}, {}, also)
        self.group.open_door(listener, TOKEN, range(1, 3))
        self.outside: list[socket.socket] = []

    def knock(self, rank: int | None) -> tuple[socket.socket, bytes]:
        """Connect as a rank does, and what the answer is: nothing where it is sent away."""
        connection = socket.create_connection(self.address, timeout=10.0)
        self.outside.append(connection)
        connection.sendall(encode_line(Hello(token=TOKEN, rank=rank)))

        def answered() -> bool:
            self.group.receive(time.monotonic())
            return bool(select.select([connection], [], [], 0.01)[0])

        assert wait_until(answered, seconds=10.0)
        return connection, connection.recv(100)

    def come(self, rank: int | None) -> socket.socket:
        """Connect as a rank does that is let in."""
        connection, answer = self.knock(rank)
        assert answer == WELCOME
        return connection

    def heard(self, count: int = 1) -> list[tuple[int, RankAnswer | Death]]:
        """So much news."""
        news: list[tuple[int, RankAnswer | Death]] = []

        def enough() -> bool:
            news.extend(self.group.receive()[0])
            return len(news) >= count

        assert wait_until(enough, seconds=10.0)
        return news


@pytest.fixture
def machine() -> Iterator[Machine]:
    here, there = os.pipe()
    machine = Machine(here)
    yield machine
    for connection in machine.outside:
        connection.close()
    machine.group.close()
    os.close(here)
    os.close(there)


def test_an_expected_rank_joins_and_is_heard(machine: Machine) -> None:
    rank = machine.come(2)
    rank.sendall(encode_line(Joined()) + encode_line(Progress(text="at work")))
    assert machine.heard() == [(2, Progress(text="at work"))]
    assert machine.group.joined == 1


@pytest.mark.parametrize("rank", [0, 3, -1])
def test_a_rank_that_nobody_expects_is_sent_away(machine: Machine, rank: int) -> None:
    assert machine.knock(rank)[1] == b""
    machine.come(1).sendall(encode_line(Progress(text="at work")))
    assert machine.heard() == [(1, Progress(text="at work"))]


def test_who_takes_the_place_of_a_rank_that_is_here_is_sent_away(machine: Machine) -> None:
    first = machine.come(1)
    assert machine.knock(1)[1] == b""
    first.sendall(encode_line(Progress(text="still here")))
    assert machine.heard() == [(1, Progress(text="still here"))]


@pytest.mark.parametrize("said", [b"no message\n", b""])
def test_a_rank_whose_connection_ends_or_makes_no_sense_has_gone(machine: Machine, said: bytes) -> None:
    rank = machine.come(1)
    rank.sendall(said)
    if not said:
        rank.close()
    assert machine.heard() == [(1, Death(status=None))]


def test_the_launcher_of_another_machine_waits_and_says_nothing(machine: Machine) -> None:
    machine.come(None).close()
    machine.come(1).sendall(encode_line(Progress(text="at work")))
    assert machine.heard() == [(1, Progress(text="at work"))]


def test_a_rank_of_another_machine_comes_in_as_it_does_there(machine: Machine) -> None:
    host, port = machine.address
    channels: list[socket.socket] = []

    def come() -> None:
        channels.append(enter(Entrance(host=host, port=port, token=TOKEN), 1))
        channels[0].sendall(encode_line(Progress(text="in")))

    thread = threading.Thread(target=come)
    thread.start()
    assert machine.heard() == [(1, Progress(text="in"))]
    thread.join()
    channels[0].close()
