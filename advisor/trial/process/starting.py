"""Start a runner's workers: forked where possible, else executed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from advisor.trial.forkable import can_fork
from advisor.trial.process.connection import WORKER_COMMAND, child_environment
from advisor.trial.process.fork_client import ForkServer, UnforkableError, borrow, check_environment, give_back
from advisor.trial.process.process import Process, Start, execute

__all__ = ["WorkerStarter"]

_SHORTEST_SECONDS = 0.001
"""A socket takes a timeout of 0 as non-blocking, which fails in another way."""


class WorkerStarter:
    """Starts the workers of one runner."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._server: ForkServer | None = None
        self._forks = self._command == WORKER_COMMAND and can_fork()

    def starting(self, arguments: Sequence[str], seconds: float) -> Start:
        """Return a function that starts a worker with these arguments.

        The function raises :class:`TimeoutError` if the libraries are not loaded within ``seconds``.
        """

        def start(descriptors: Mapping[str, int], output: int) -> Process:
            environment = child_environment(os.environ)
            if self._forks:
                try:
                    check_environment(environment)
                    server, wait = self._borrowed(environment), max(_SHORTEST_SECONDS, seconds)
                    return server.fork(arguments, descriptors, output, environment, wait)
                except UnforkableError as error:  # it will not work next time either
                    self._forks = False
                    self.close()
                    os.write(output, f"momadvise: this process was not forked, but started: {error}\n".encode())
            return execute((*self._command, *arguments), environment)(descriptors, output)

        return start

    def close(self) -> None:
        """Release the fork server."""
        server, self._server = self._server, None
        if server is not None:
            give_back(server)

    def _borrowed(self, environment: Mapping[str, str]) -> ForkServer:
        if self._server is not None and self._server.is_closed:
            raise UnforkableError("the process that forks has ended, or was stopped")
        server = borrow(environment)  # a different one if the environment has changed
        self.close()
        self._server = server
        return server
