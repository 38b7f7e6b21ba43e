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
from advisor.trial.nodes import Nodes
from advisor.trial.rank_group import ADDRESS_VARIABLE, TOKEN_VARIABLE

__all__ = ["Launch", "announced", "join_launch"]

_KEY = "momadvise/launch"
_STORE_LIMIT = datetime.timedelta(minutes=1)


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
    store = _store(nodes)
    store.set(_KEY, msgspec.json.encode(launch).decode())
    yield
    del store


def join_launch(nodes: Nodes) -> None:
    """Take part in the launch of the first node until it ends, and with it this process.

    Args:
        nodes: The machines, of which this is not the first.

    Raises:
        torch.distributed.DistError: The first node has gone away again.
    """
    assert nodes.rank > 0, "the first node is followed by the others"
    store = _store(nodes)
    launch = msgspec.json.decode(store.get(_KEY), type=Launch)
    del store
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


def _store(nodes: Nodes) -> Any:
    return dist.TCPStore(  # type: ignore[attr-defined]
        nodes.host,
        nodes.port,
        is_master=nodes.rank == 0,
        timeout=_STORE_LIMIT,
        wait_for_workers=False,
        multi_tenant=True,
    )
