"""Client of the fork server, which forks workers: shared by all runners of a process while any needs it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import psutil

from advisor.trial.fork_server import LARGEST_MESSAGE, Fork, ForkAnswer, Forked, ForkRequest, Look, Seen, Unforkable
from advisor.trial.process.process import Process

__all__ = ["ForkServer", "UnforkableError", "borrow", "check_environment", "give_back", "servers_are_kept"]

_COMMAND = (sys.executable, "-P", "-u", "-m", "advisor.trial.fork_server")

_ANSWER_SECONDS = 30.0
_END_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LOOKS_AT_STOPPED = 5
_TOO_LARGE = "its environment is too large to be handed on"

_READ_LATE = frozenset({"COLUMNS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "SHLVL", "_"})
"""Variables that no library reads while loading; all others must match for a fork server to be shared."""


class UnforkableError(Exception):
    """A worker cannot be forked, but can still be executed."""


class ForkServer:
    """A running process that forks workers."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.users = 0
        """How many have borrowed it."""
        self._lock = threading.RLock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*_COMMAND, f"--socket={theirs.fileno()}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a worker that is executed instead says what is wrong
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=dict(environment),
                start_new_session=True,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()

    def fork(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[str, int],
        output: int,
        environment: Mapping[str, str],
        seconds: float,
    ) -> Process:
        """Start a worker.

        Raises:
            UnforkableError: It must be executed instead.
            TimeoutError: No answer came.
        """
        request = Fork(
            arguments=list(arguments), flags=list(descriptors), folder=os.getcwd(), environment=dict(environment)
        )
        answer = self._ask(request, seconds, [*descriptors.values(), output])
        if not isinstance(answer, Forked):
            self.close()
            raise UnforkableError(answer.reason if isinstance(answer, Unforkable) else "it has ended, or was stopped")
        return _ForkedProcess(self, answer.process)

    def ask(self, request: Look) -> Seen | None:
        """How a process has ended; ``None`` if this server itself has ended."""
        try:
            answer = self._ask(request, _ANSWER_SECONDS + (request.kill_seconds or 0.0))
        except TimeoutError:  # do not wait for an unresponsive server again
            return None
        assert answer is None or isinstance(answer, Seen), f"{request} must not be answered by {answer}"
        return answer

    def close(self) -> None:
        """End it and the workers it has forked; a second call does nothing."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            self._channel.close()
            if _is_stopped(process):
                process.kill()
            try:
                process.wait(timeout=_END_SECONDS)
            except subprocess.TimeoutExpired:  # it still loads its libraries, say
                process.kill()
                process.wait()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._process is None

    def _ask(self, request: ForkRequest, seconds: float, descriptors: Sequence[int] = ()) -> ForkAnswer | None:
        message = _encoded(request)
        with self._lock:
            if self._process is None:
                return None
            try:
                self._channel.settimeout(seconds)
                socket.send_fds(self._channel, [message], list(descriptors))
                data = self._received(time.monotonic() + seconds)
            except (BrokenPipeError, ConnectionResetError):
                data = b""
            except OSError as error:
                self.close()
                if error.errno in (errno.EMSGSIZE, errno.ENOBUFS):  # how much fits is for the system to say
                    raise UnforkableError(_TOO_LARGE) from None
                raise
            except BaseException:  # this answer must never be taken for that to the next request
                self.close()
                raise
            if not data:
                self.close()
                return None
        answer: ForkAnswer = msgspec.json.decode(data, type=ForkAnswer)
        return answer

    def _received(self, deadline: float) -> bytes:
        """Its answer; empty if it has ended, or was stopped from outside.

        A job may be stopped and continued one process at a time, so its state is checked several times.
        """
        assert self._process is not None, "somebody is asked"
        stopped = 0
        while stopped < _LOOKS_AT_STOPPED:
            remaining = deadline - time.monotonic()
            if select.select([self._channel], [], [], max(0.0, min(remaining, _LOOK_SECONDS)))[0]:
                return self._channel.recv(LARGEST_MESSAGE)
            if remaining <= 0:
                raise TimeoutError
            stopped = stopped + 1 if _is_stopped(self._process) else 0
        return b""


def check_environment(environment: Mapping[str, str]) -> None:
    """Check that workers with this environment can be forked, before starting a server for it.

    Raises:
        UnforkableError: They cannot.
    """
    _encoded(Fork(arguments=[], flags=[], folder="", environment=dict(environment)))


def _encoded(request: ForkRequest) -> bytes:
    try:
        message = msgspec.json.encode(request)
    except UnicodeEncodeError:
        raise UnforkableError("its environment has bytes that are not UTF-8") from None
    if len(message) > LARGEST_MESSAGE:
        raise UnforkableError(_TOO_LARGE)
    return message


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    return False


class _ForkedProcess:
    """A child of the server, which alone can reap it and see how it ended."""

    def __init__(self, server: ForkServer, process: int) -> None:
        self._server = server
        self._number = process
        self._handle = os.pidfd_open(process)  # the server has not reaped it, so the ID is still valid

    def __del__(self) -> None:
        os.close(self._handle)

    def status(self) -> int | None:
        if not self._has_ended(0.0):
            return None
        seen = self._server.ask(Look(process=self._number))
        return -signal.SIGKILL if seen is None or seen.status is None else seen.status

    def end(self, seconds: float) -> bool:
        if self._server.ask(Look(process=self._number, kill_seconds=seconds)) is not None:
            return self._has_ended(0.0)
        # A guardian without its parent ends its descendants, then itself.
        if not self._has_ended(seconds):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        return self._has_ended(seconds)

    def _has_ended(self, seconds: float) -> bool:
        return bool(select.select([self._handle], [], [], seconds)[0])


_LOCK = threading.Lock()
_SERVERS: dict[object, ForkServer] = {}
_KEEPERS = 0


def borrow(environment: Mapping[str, str]) -> ForkServer:
    """The fork server for this environment, started if there is none; see :func:`give_back`."""
    # A forked process must not use its parent's servers.
    key = (os.getpid(), *sorted(one for one in environment.items() if one[0] not in _READ_LATE))
    with _LOCK:
        if key not in _SERVERS or _SERVERS[key].is_closed:
            _SERVERS[key] = ForkServer(environment)
        _SERVERS[key].users += 1
        return _SERVERS[key]


def give_back(server: ForkServer) -> None:
    """Release a borrowed server; the last release ends it."""
    with _LOCK:
        server.users -= 1
    if not _KEEPERS:
        _end_unused()


@contextlib.contextmanager
def servers_are_kept() -> Iterator[None]:
    """Keep fork servers alive between runners, for callers that run many studies in a row."""
    global _KEEPERS
    _KEEPERS += 1
    try:
        yield
    finally:
        _KEEPERS -= 1
        if not _KEEPERS:
            _end_unused()


def _end_unused() -> None:
    with _LOCK:
        unused = [_SERVERS.pop(key) for key, server in list(_SERVERS.items()) if not server.users]
    for server in unused:
        server.close()
