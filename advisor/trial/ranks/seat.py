"""What one rank is told when it starts, and the environment that ``torchrun`` would give it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from advisor.trial.ranks.door import Entrance
from advisor.trial.ranks.meeting import FileMeeting, Meeting, NetworkMeeting, loopback_only

__all__ = ["SEAT_VARIABLE", "Seat"]

SEAT_VARIABLE = "MOMADVISE_SEAT"
"""Tells a rank that is executed, not forked; of the environment, as every user can read the arguments of others."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one rank.

    Attributes:
        size: How many there are on all machines.
        launcher: Process number of what starts it.
        channel: Descriptor of its connection to the launcher, where that is on this machine.
        entrance: Where to connect otherwise.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: int
    meeting: Meeting
    run: str
    channel: int | None = None
    entrance: Entrance | None = None

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The variables that differ from what a rank inherits: torchrun's, as the training will be started by it.

        On one machine nothing listens at the address of the first rank: they meet in a file.
        """
        node, nodes = str(self.rank // self.local_size), str(self.size // self.local_size)
        rank, size = str(self.rank), str(self.size)
        variables = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": nodes,
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "TORCHELASTIC_RUN_ID": self.run,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            # As torchrun does where the user has not said otherwise.
            "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", "1"),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        match self.meeting:
            case FileMeeting():
                variables |= loopback_only()
            case NetworkMeeting(host=host, port=port):
                variables |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
        return variables
