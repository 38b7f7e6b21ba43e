"""Accept ranks of other machines: connections without the token are closed, and their data is dropped.

Anybody who reaches the port can connect. Unauthenticated connections are limited in time, bytes and number, and cannot
end the launcher.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import time
from collections.abc import Callable

import msgspec

from advisor.text.records import DamagedError, decode_record
from advisor.trial.protocol import Hello, Welcome, encode_line

__all__ = ["LONGEST_HELLO", "MOST_WAITING", "Door", "Entrance", "enter"]

LONGEST_HELLO = 1024
"""Bytes."""
MOST_WAITING = 64
"""Most unauthenticated connections; for one more, the oldest is closed."""
_PATIENCE_SECONDS = 10.0

_ENTERING_SECONDS = 60.0
_PAUSE_SECONDS = 0.2


class Entrance(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank of another machine needs to connect."""

    host: str
    port: int
    token: str


class Door:
    """The listening end.

    Args:
        listener: Listening socket; closed with this.
        token: Secret that a rank must present.
        selector: Waits for events; call the function in an event's data to handle it.
        admit: Called with each authenticated rank; returns whether to keep its connection.
        clock: Seconds from any fixed moment.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        selector: selectors.BaseSelector,
        admit: Callable[[Hello, socket.socket], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._token = token.encode()
        self._selector = selector
        self._admit = admit
        self._clock = clock
        self._waiting: dict[socket.socket, _Waiting] = {}
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def waiting(self) -> int:
        """Number of unauthenticated connections."""
        return len(self._waiting)

    def close_to_the_silent(self) -> None:
        """Close connections that have taken too long; call it regularly."""
        now = self._clock()
        for connection, waiting in list(self._waiting.items()):
            if now >= waiting.until:
                self._send_away(connection)

    def close(self) -> None:
        """Stop accepting connections."""
        for connection in list(self._waiting):
            self._send_away(connection)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # gone again
            return
        if len(self._waiting) >= MOST_WAITING:
            self._send_away(next(iter(self._waiting)))
        connection.setblocking(False)
        self._waiting[connection] = _Waiting(until=self._clock() + _PATIENCE_SECONDS)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(connection))

    def _hear(self, connection: socket.socket) -> None:
        waiting = self._waiting.get(connection)
        if waiting is None:  # sent away a moment ago, for another
            return
        try:
            said = connection.recv(LONGEST_HELLO + 1 - len(waiting.said))
        except BlockingIOError:
            return
        except OSError:
            said = b""
        waiting.said += said
        if not said or len(waiting.said) > LONGEST_HELLO:
            self._send_away(connection)
        elif b"\n" in said:
            hello = self._understood(waiting.said)
            if hello is None:
                self._send_away(connection)
            else:
                self._let_in(hello, connection)

    def _understood(self, said: bytes) -> Hello | None:
        """A hello with the token and nothing behind it."""
        if said.index(b"\n") != len(said) - 1:
            return None
        try:
            hello = decode_record(said, Hello)
        except DamagedError:
            return None
        return hello if hmac.compare_digest(hello.token.encode(errors="replace"), self._token) else None

    def _let_in(self, hello: Hello, connection: socket.socket) -> None:
        del self._waiting[connection]
        self._selector.unregister(connection)
        connection.setblocking(True)
        if not self._admit(hello, connection):
            connection.close()
            return
        with contextlib.suppress(OSError):  # whoever holds it finds out that it has gone again
            connection.sendall(encode_line(Welcome()))

    def _send_away(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        self._selector.unregister(connection)
        connection.close()


class _Waiting(msgspec.Struct):
    until: float
    said: bytes = b""


def enter(entrance: Entrance, rank: int | None, *, seconds: float = _ENTERING_SECONDS) -> socket.socket:
    """Connect and authenticate, retrying if other connections crowd the port.

    Args:
        entrance: Where to connect.
        rank: The connecting rank; ``None`` for the launcher of another machine, which only waits for the end.
        seconds: How long to try.

    Raises:
        OSError: The connection was not accepted.
    """
    deadline = time.monotonic() + seconds
    hello = encode_line(Hello(token=entrance.token, rank=rank))
    welcome = encode_line(Welcome())
    while True:
        with contextlib.ExitStack() as unless_in:
            try:
                channel = socket.create_connection((entrance.host, entrance.port), timeout=_PATIENCE_SECONDS)
                unless_in.enter_context(channel)
                channel.sendall(hello)
                if _received(channel, len(welcome)) == welcome:
                    channel.settimeout(None)
                    unless_in.pop_all()
                    return channel
                reason: OSError = ConnectionAbortedError("it was closed without a welcome")
            except OSError as error:
                reason = error
        if time.monotonic() >= deadline:
            raise ConnectionError(
                f"the first machine's launcher at {entrance.host}:{entrance.port} must let a rank in, but: {reason}"
            ) from reason
        time.sleep(_PAUSE_SECONDS)


def _received(channel: socket.socket, count: int) -> bytes:
    """Exactly this many bytes; fewer at the end of the stream."""
    received = b""
    while len(received) < count and (more := channel.recv(count - len(received))):
        received += more
    return received
