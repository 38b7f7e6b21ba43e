"""The loop of every node but the first: start workers one at a time, each joining a launch of the first node."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from advisor.trial.nodes import Nodes
from advisor.trial.process.connection import WORKER_COMMAND, Connection, SilenceError, child_environment
from advisor.trial.process.process import execute
from advisor.trial.protocol import Exited

__all__ = ["follow"]

_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 1.0


def follow(nodes: Nodes, log: Path, *, patience_seconds: float = 3600.0) -> None:
    """Join the trials of the first node until it has launched none for a while.

    Single-process trials run on the first node only.

    Raises:
        KeyboardInterrupt: The user interrupted; no process is left.
        OutputFolderError: The log cannot be written.
    """
    assert nodes.rank > 0, "the first node tunes"
    while _launched(nodes, time.monotonic() + patience_seconds):
        connection = Connection(execute((*WORKER_COMMAND, *nodes.flags()), child_environment(os.environ)), log)
        try:
            _wait(connection)
        finally:
            connection.end()
        time.sleep(_PAUSE_SECONDS)  # a launch that fails at once is not joined in a busy loop


def _launched(nodes: Nodes, deadline: float) -> bool:
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((nodes.host, nodes.port), timeout=_LOOK_SECONDS),
        ):
            return True
        time.sleep(_PAUSE_SECONDS)
    return False


def _wait(connection: Connection) -> None:
    while True:
        try:
            answer = connection.receive(time.monotonic() + _LOOK_SECONDS)
        except SilenceError:
            continue
        assert isinstance(answer, Exited), f"a follower's worker only ends, but it said {answer}"
        return
