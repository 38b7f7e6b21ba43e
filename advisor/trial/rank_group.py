"""The ranks as their launcher holds them: a connection to each, and the end of each process."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import time
from collections.abc import Mapping

import msgspec

from advisor.trial.protocol import Joined, LineReader, RankAnswer, Request, encode_line

__all__ = ["ADDRESS_VARIABLE", "TOKEN_VARIABLE", "Death", "RankGroup"]

ADDRESS_VARIABLE = "MOMADVISE_RANKS_ADDRESS"
"""Tells a rank where its launcher listens: host:port."""
TOKEN_VARIABLE = "MOMADVISE_RANKS_TOKEN"
"""Tells a rank what to show there."""

_LOOK_SECONDS = 1.0
_LOOK_SECONDS_WITHOUT_PIDFD = 0.05


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's process has ended.

    Attributes:
        status: Exit status, or minus the number of the signal; ``None`` for a rank of another node, of which only
            the connection is known.
    """

    status: int | None


class RankGroup:
    """The running ranks.

    Args:
        listener: Where ranks connect.
        token: What a rank must know to be one of ours.
        processes: Rank -> process number, of those that are children of this process.
        also: A descriptor whose news end the waiting, too.
    """

    def __init__(self, listener: socket.socket, token: str, processes: Mapping[int, int], also: int) -> None:
        self._listener = listener
        self._token = token
        self._processes = dict(processes)
        self._also = also
        self._ends: dict[int, int] = {}
        self._connections: dict[int, socket.socket] = {}
        self._readers: dict[socket.socket, LineReader] = {}
        self._ranks: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(also, selectors.EVENT_READ)
        self._pause = _LOOK_SECONDS_WITHOUT_PIDFD
        if hasattr(os, "pidfd_open"):
            self._pause = _LOOK_SECONDS
            for rank, process in self._processes.items():
                self._ends[rank] = os.pidfd_open(process)
                self._selector.register(self._ends[rank], selectors.EVENT_READ)

    @property
    def joined(self) -> int:
        """How many ranks have connected."""
        return len(self._connections)

    def send(self, request: Request) -> None:
        """Ask every rank for its share of a trial; one that is gone will be found dead."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(encode_line(request))

    def receive(self, deadline: float | None = None) -> tuple[list[tuple[int, RankAnswer | Death]], bool]:
        """Wait a little for news.

        Args:
            deadline: Moment of ``time.monotonic`` until which to wait at most; about a second without it.

        Returns:
            What the ranks said, in the order of arrival, and then which of them died; and whether there is something
            to read from ``also``.
        """
        pause = self._pause if deadline is None else max(0.0, min(self._pause, deadline - time.monotonic()))
        news: list[tuple[int, RankAnswer | Death]] = []
        also = False
        for key, _ in self._selector.select(pause):
            if key.fileobj == self._also:
                also = True
            elif key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                self._readers[connection] = LineReader(connection.fileno())
                self._selector.register(connection, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                news += self._heard(key.fileobj)
        return news + self._deaths(), also

    def _heard(self, connection: socket.socket) -> list[tuple[int, RankAnswer | Death]]:
        news: list[tuple[int, RankAnswer | Death]] = []
        try:
            lines = self._readers[connection].read()
            messages = None if lines is None else [msgspec.json.decode(line, type=RankAnswer) for line in lines]
        except (OSError, msgspec.DecodeError):  # gone, or somebody else's: the process itself will tell more
            messages = None
        if messages is None:
            return self._lost(connection)
        for message in messages:
            if isinstance(message, Joined) and message.token == self._token:
                self._ranks[connection] = message.rank
                self._connections[message.rank] = connection
            if connection not in self._ranks:
                return self._lost(connection)
            news.append((self._ranks[connection], message))
        return news

    def _lost(self, connection: socket.socket) -> list[tuple[int, RankAnswer | Death]]:
        self._selector.unregister(connection)
        del self._readers[connection]
        connection.close()
        rank = self._ranks.pop(connection, None)
        if rank is None:
            return []
        del self._connections[rank]
        return [] if rank in self._processes else [(rank, Death(status=None))]

    def _deaths(self) -> list[tuple[int, RankAnswer | Death]]:
        news: list[tuple[int, RankAnswer | Death]] = []
        for rank, process in list(self._processes.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                # What it wrote before its end is still to be read: its result counts if it was complete.
                # Processes of its own may hold the connection open, so that its end need not come.
                connection = self._connections.get(rank)
                while connection is not None and connection in self._readers and _is_readable(connection):
                    news += self._heard(connection)
                del self._processes[rank]
                if rank in self._ends:
                    self._selector.unregister(self._ends[rank])
                    os.close(self._ends.pop(rank))
                news.append((rank, Death(status=os.waitstatus_to_exitcode(status))))
        return news


def _is_readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])
