"""The ranks as their launcher holds them: a connection to each, and the end of each process."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import time
from collections.abc import Collection, Mapping

import msgspec

from advisor.text.records import DamagedError, decode_record
from advisor.trial.protocol import Hello, Joined, LineReader, RankAnswer, Request, encode_line
from advisor.trial.ranks.door import Door

__all__ = ["Death", "RankGroup"]

_LOOK_SECONDS = 1.0
_LOOK_SECONDS_WITHOUT_PIDFD = 0.05


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's process has ended.

    Attributes:
        status: Exit status, or minus the number of the signal; ``None`` for a rank of another node, of which only
            the connection is known.
    """

    status: int | None


News = list[tuple[int, RankAnswer | Death]]


class RankGroup:
    """The running ranks.

    Args:
        channels: Rank -> connection, of those that are children of this process.
        processes: Rank -> process number, of the same.
        also: A descriptor whose news end the waiting, too.
    """

    def __init__(self, channels: Mapping[int, socket.socket], processes: Mapping[int, int], also: int) -> None:
        self._processes = dict(processes)
        self._also = also
        self._news: News = []
        self._ends: dict[int, int] = {}
        self._connections: dict[int, socket.socket] = {}
        self._readers: dict[socket.socket, LineReader] = {}
        self._expected: Collection[int] = ()
        self._joined: set[int] = set()
        self._door: Door | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(also, selectors.EVENT_READ, lambda: None)
        self._pause = _LOOK_SECONDS_WITHOUT_PIDFD
        for rank, channel in channels.items():
            self._connect(rank, channel)
        if hasattr(os, "pidfd_open"):
            self._pause = _LOOK_SECONDS
            for rank, process in self._processes.items():
                self._ends[rank] = os.pidfd_open(process)
                self._selector.register(self._ends[rank], selectors.EVENT_READ, lambda: None)

    @property
    def joined(self) -> int:
        """How many ranks have found the others."""
        return len(self._joined)

    def open_door(self, listener: socket.socket, token: str, ranks: Collection[int]) -> None:
        """Let ranks of other machines in."""
        self._expected = ranks
        self._door = Door(listener, token, self._selector, self._admit)

    def send(self, request: Request) -> None:
        """Ask every rank for its share of a trial; one that is gone will be found dead."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(encode_line(request))

    def receive(self, deadline: float | None = None) -> tuple[News, bool]:
        """Wait a little for news.

        Args:
            deadline: Moment of ``time.monotonic`` until which to wait at most; about a second without it.

        Returns:
            What the ranks said, in the order of arrival, and then which of them died; and whether there is something
            to read from ``also``.
        """
        pause = self._pause if deadline is None else max(0.0, min(self._pause, deadline - time.monotonic()))
        ready = self._selector.select(pause)
        for key, _ in ready:
            key.data()
        if self._door is not None:
            self._door.close_to_the_silent()
        self._look_for_deaths()
        news, self._news = self._news, []
        return news, any(key.fd == self._also for key, _ in ready)

    def close(self) -> None:
        """Hear of nobody any more; the ranks end as their connections do."""
        if self._door is not None:
            self._door.close()
        for end in self._ends.values():
            os.close(end)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def _admit(self, hello: Hello, connection: socket.socket) -> bool:
        if hello.rank is None:  # a launcher, which only waits for the end of this process
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._forget(connection))
            return True
        if hello.rank not in self._expected or hello.rank in self._connections:
            return False
        self._connect(hello.rank, connection)
        return True

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def _connect(self, rank: int, connection: socket.socket) -> None:
        self._connections[rank] = connection
        self._readers[connection] = LineReader(connection.fileno())
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(rank, connection))

    def _hear(self, rank: int, connection: socket.socket) -> None:
        if connection not in self._readers:  # lost a moment ago
            return
        try:
            lines = self._readers[connection].read()
            messages = None if lines is None else [decode_record(line, RankAnswer) for line in lines]
        except (OSError, DamagedError):  # gone, or the model wrote into it: the process itself will tell more
            messages = None
        if messages is None:
            self._lose(rank, connection)
            return
        for message in messages:
            if isinstance(message, Joined):
                self._joined.add(rank)
            else:
                self._news.append((rank, message))

    def _lose(self, rank: int, connection: socket.socket) -> None:
        del self._readers[connection]
        del self._connections[rank]
        self._forget(connection)
        if rank not in self._processes:
            self._news.append((rank, Death(status=None)))

    def _look_for_deaths(self) -> None:
        for rank, process in list(self._processes.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                # What it wrote before its end is still to be read: its result counts if it was complete.
                # Processes of its own may hold the connection open, so that its end need not come.
                connection = self._connections.get(rank)
                while connection is not None and connection in self._readers and _is_readable(connection):
                    self._hear(rank, connection)
                del self._processes[rank]
                if rank in self._ends:
                    self._selector.unregister(self._ends[rank])
                    os.close(self._ends.pop(rank))
                self._news.append((rank, Death(status=os.waitstatus_to_exitcode(status))))


def _is_readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])
