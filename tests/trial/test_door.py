"""Where ranks of other machines come in, whoever else reaches the port."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from advisor.trial.protocol import Hello, Progress, Welcome, encode_line
from advisor.trial.ranks.door import LONGEST_HELLO, MOST_WAITING, Door, Entrance, enter

TOKEN = "0123456789abcdef"
WELCOME = encode_line(Welcome())


class Hall:
    """A door whose clock the test moves, and who has come in."""

    def __init__(self) -> None:
        self.now = 0.0
        self.guests: dict[int | None, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.door = Door(listener, TOKEN, self.selector, self.admit, lambda: self.now)
        self.outside: list[socket.socket] = []

    def admit(self, hello: Hello, connection: socket.socket) -> bool:
        if hello.rank in self.guests:
            return False
        self.guests[hello.rank] = connection
        return True

    def look(self) -> None:
        """Handle all news that there are."""
        while found := self.selector.select(0.02):
            for key, _ in found:
                key.data()
        self.door.close_to_the_silent()

    def knock(self, said: bytes = b"") -> socket.socket:
        """Connect and say something."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        self.outside.append(connection)
        connection.sendall(said)
        self.look()
        return connection

    def close(self) -> None:
        self.door.close()
        for connection in (*self.outside, *self.guests.values()):
            connection.close()
        self.selector.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    hall = Hall()
    yield hall
    hall.close()


def hello(rank: int | None = 1, token: str = TOKEN) -> bytes:
    return encode_line(Hello(rank=rank, token=token))


def is_sent_away(connection: socket.socket) -> bool:
    try:
        return connection.recv(len(WELCOME)) == b""
    except ConnectionResetError:
        return True


def test_who_shows_the_token_is_let_in(hall: Hall) -> None:
    rank = hall.knock(hello())
    assert rank.recv(100) == WELCOME
    assert set(hall.guests) == {1}
    assert hall.door.waiting == 0
    rank.sendall(b"more")
    assert hall.guests[1].recv(4) == b"more"


def test_a_hello_may_come_in_pieces(hall: Hall) -> None:
    said = hello()
    rank = hall.knock(said[:10])
    rank.sendall(said[10:])
    hall.look()
    assert set(hall.guests) == {1}


_STRANGERS: dict[str, Callable[[], bytes]] = {
    "another token": lambda: hello(token="0123456789abcdee"),
    "no token": lambda: hello(token=""),
    "the beginning of the token": lambda: hello(token=TOKEN[:-1]),
    "a token of other letters": lambda: hello(token="é" * 20),
    "another message": lambda: encode_line(Progress(text=TOKEN)),
    "bytes that are no text": lambda: b"\xff\xfe\x00\n",
    "an empty line": lambda: b"\n",
    "many brackets": lambda: b"[" * (LONGEST_HELLO - 1) + b"\n",
    "a request of the web": lambda: b"GET / HTTP/1.1\r\n\r\n",
    "a pickled object": lambda: b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\n",
    "a line that does not end": lambda: b"x" * (LONGEST_HELLO + 1),
    "a long line": lambda: b"x" * 2**20 + b"\n",
    "more behind the hello": lambda: hello() + b"x",
    "a rank that is no number": lambda: hello().replace(b"1}", b'"1"}'),
}


@pytest.mark.parametrize("name", _STRANGERS)
def test_a_stranger_is_sent_away_and_the_door_stays_open(hall: Hall, name: str) -> None:
    stranger = socket.create_connection(("127.0.0.1", hall.port), timeout=5.0)
    hall.outside.append(stranger)
    said = _STRANGERS[name]()
    writer = threading.Thread(target=lambda: _say(stranger, said))
    writer.start()
    hall.look()
    writer.join()
    hall.look()
    assert is_sent_away(stranger)
    assert hall.door.waiting == 0
    assert not hall.guests
    assert hall.knock(hello()).recv(100) == WELCOME


def _say(stranger: socket.socket, said: bytes) -> None:
    try:
        stranger.sendall(said)
    except OSError:  # nobody listens to all of it
        return


def test_who_says_nothing_is_sent_away_after_some_seconds(hall: Hall) -> None:
    silent, slow = hall.knock(), hall.knock(b"{")
    hall.now = 9.9
    hall.look()
    slow.sendall(b'"')
    hall.look()
    assert hall.door.waiting == 2
    hall.now = 10.0
    hall.look()
    assert hall.door.waiting == 0
    assert is_sent_away(silent)
    assert is_sent_away(slow)


def test_who_goes_away_is_forgotten(hall: Hall) -> None:
    hall.knock(b"{").close()
    hall.look()
    assert hall.door.waiting == 0


def test_many_that_say_nothing_keep_nobody_out(hall: Hall) -> None:
    address = ("127.0.0.1", hall.port)
    for _ in range(2 * MOST_WAITING):
        hall.outside.append(socket.create_connection(address, timeout=5.0))
        if len(hall.outside) % 32 == 0:  # fewer than a listener has room for
            hall.look()
    silent = hall.outside.copy()
    assert hall.door.waiting == MOST_WAITING
    assert is_sent_away(silent[0])
    assert hall.knock(hello()).recv(100) == WELCOME


def test_a_rank_that_is_here_already_does_not_come_in_again(hall: Hall) -> None:
    hall.knock(hello())
    again = hall.knock(hello())
    assert is_sent_away(again)
    assert hall.knock(hello(rank=2)).recv(100) == WELCOME


def test_a_rank_knocks_until_it_is_let_in() -> None:
    """A crowd of strangers may have had it sent away."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            first, _ = listener.accept()
            first.close()
            second, _ = listener.accept()
            with second:
                said.append(second.recv(LONGEST_HELLO))
                second.sendall(WELCOME)

        said: list[bytes] = []
        thread = threading.Thread(target=answer)
        thread.start()
        enter(Entrance(host="127.0.0.1", port=port, token=TOKEN), 3, seconds=60.0).close()
        thread.join()
    assert said == [hello(rank=3)]


def test_a_rank_that_nobody_lets_in_says_where_it_knocked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"launcher at 127.0.0.1:{port} must let a rank in, but: "):
        enter(Entrance(host="127.0.0.1", port=port, token=TOKEN), 3, seconds=0.0)
