"""What a node after the first runs: one worker after the other, each of which joins a launch of the first node."""

from __future__ import annotations

import time
from pathlib import Path

from advisor.trial.connection import WORKER_COMMAND, Connection, SilenceError
from advisor.trial.nodes import NOBODY_STATUS, Nodes
from advisor.trial.protocol import Exited

__all__ = ["follow"]

_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 1.0


def follow(nodes: Nodes, log: Path, *, patience_seconds: float = 3600.0) -> None:
    """Take part in the trials of the first node, until it has launched none for a while.

    The first node also has trials for one process alone, in which the others have nothing to do.

    Args:
        nodes: The machines, of which this is not the first.
        log: File for what the ranks of this node print, where the study's folder is not shared.
        patience_seconds: How long to wait for another launch.

    Raises:
        KeyboardInterrupt: The user interrupted; no process is left.
        OutputFolderError: The log cannot be written.
    """
    assert nodes.rank > 0, "the first node tunes"
    command = (*WORKER_COMMAND, *nodes.flags(), f"--patience={patience_seconds}")
    while True:
        connection = Connection(command, log)
        try:
            status = _status(connection)
        finally:
            connection.end()
        if status == NOBODY_STATUS:
            return
        time.sleep(_PAUSE_SECONDS)  # a launch that fails at once is not joined in a busy loop


def _status(connection: Connection) -> int:
    """The exit status of a worker, when it has ended."""
    while True:
        try:
            answer = connection.receive(time.monotonic() + _LOOK_SECONDS)
        except SilenceError:
            continue
        assert isinstance(answer, Exited), f"a follower's worker only ends, but it said {answer}"
        return answer.status
