"""Nodes after the first: each learns of a launch from the first one, starts its share of the ranks, and waits.

The first node's launcher serves a store at the endpoint, in which it announces its launch. When it ends, a follower's
connection to it closes; then the follower's ranks end too, and it waits for the next launch.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import Any

import msgspec

from advisor.trial.nodes import Nodes
from advisor.trial.ranks.door import Entrance, enter
from advisor.trial.ranks.meeting import Meeting, reached_store, served_store
from advisor.trial.ranks.rank_start import start_ranks
from advisor.trial.ranks.seat import Seat

__all__ = ["Launch", "announced", "join_launch"]

_KEY = "momadvise/launch"
_ANNOUNCING_LIMIT = datetime.timedelta(minutes=1)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One group of ranks."""

    meeting: Meeting
    run: str
    ranks: int
    entrance: Entrance | None = None

    def seats(self, nodes: Nodes) -> list[Seat]:
        """Of one node."""
        count = nodes.local_ranks(self.ranks)
        return [
            Seat(
                rank=nodes.rank * count + local_rank,
                size=self.ranks,
                local_rank=local_rank,
                local_size=count,
                launcher=os.getpid(),
                meeting=self.meeting,
                run=self.run,
                entrance=self.entrance,
            )
            for local_rank in range(count)
        ]


def announced(launch: Launch, nodes: Nodes) -> Any:
    """Announce a launch to followers for the lifetime of the returned object."""
    store = served_store(nodes.host, nodes.port)
    store.set(_KEY, msgspec.json.encode(launch).decode())
    return store


def join_launch(nodes: Nodes) -> None:
    """Join the launch of the first node until it ends; this process ends with it.

    Raises:
        torch.distributed.DistError: The first node has gone away again.
        OSError: The same.
    """
    assert nodes.rank > 0, "the first node is followed by the others"
    store = reached_store(nodes.host, nodes.port)
    store.set_timeout(_ANNOUNCING_LIMIT)
    launch = msgspec.json.decode(store.get(_KEY), type=Launch)
    del store
    assert launch.entrance is not None, "a launch on several nodes has one"
    channel = enter(launch.entrance, None)
    # The first node hears itself when one of them dies, by the end of its connection.
    start_ranks(launch.seats(nodes), own=[channel.fileno()])
    with contextlib.suppress(OSError):
        channel.recv(1)  # the launcher says nothing, until it is gone
    os._exit(0)
