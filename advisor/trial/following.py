"""The nodes after the first: each learns of a launch from the first one, starts its share of the ranks, and waits.

The first node's launcher keeps a store at the endpoint as long as it lives, in which it announces its launch. A
follower's connection to the launcher ends with it; then the follower's ranks end, too, and it waits for the next.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch.distributed as dist

from advisor.trial.agent import run_agent
from advisor.trial.nodes import NOBODY_STATUS, Nodes
from advisor.trial.rank_group import ADDRESS_VARIABLE, TOKEN_VARIABLE

__all__ = ["Launch", "announced", "join_launch"]

_KEY = "momadvise/launch"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One group of ranks.

    Attributes:
        run: Its name.
        local_ranks: Ranks on each node.
        address: Where ranks find the launcher: ``host:port``.
        token: What they show there.
    """

    run: str
    local_ranks: int
    address: str
    token: str

    def into_environment(self) -> None:
        """Tell the ranks that this process will start."""
        os.environ[ADDRESS_VARIABLE] = self.address
        os.environ[TOKEN_VARIABLE] = self.token


@contextlib.contextmanager
def announced(launch: Launch, nodes: Nodes) -> Iterator[None]:
    """Let followers know of a launch; without followers do nothing.

    Args:
        launch: What to announce.
        nodes: The machines, of which this is the first.
    """
    if nodes.count == 1:
        yield
        return
    # The agent makes its own store at the same endpoint, which within a process is the same server.
    store = _store(nodes, datetime.timedelta(minutes=10))
    store.set(_KEY, msgspec.json.encode(launch).decode())
    yield
    del store


def join_launch(nodes: Nodes, patience_seconds: float) -> None:
    """Take part in the next launch until it ends, and with it the process; exits with a status for nobody there.

    Args:
        nodes: The machines, of which this is not the first.
        patience_seconds: How long to wait for the first node.
    """
    assert nodes.rank > 0, "the first node is followed by the others"
    try:
        store = _store(nodes, datetime.timedelta(seconds=patience_seconds))
        launch = msgspec.json.decode(store.get(_KEY), type=Launch)
    except dist.DistError:
        os._exit(NOBODY_STATUS)
    launch.into_environment()
    host, _, port = launch.address.rpartition(":")
    channel = socket.create_connection((host, int(port)))

    def started(processes: Mapping[int, int]) -> None:
        """The first node hears itself when one of them dies, by the end of its connection."""

    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    run_agent(launch.local_ranks, launch.run, nodes, started)


def _end_with(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):
        channel.recv(1)  # the launcher says nothing, until it is gone
    os._exit(0)


def _store(nodes: Nodes, timeout: datetime.timedelta) -> Any:
    return dist.TCPStore(  # type: ignore[attr-defined]
        nodes.host,
        nodes.port,
        is_master=nodes.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )
