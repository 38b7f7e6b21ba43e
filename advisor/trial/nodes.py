"""Where the ranks of a trial run: on this machine, or on several that meet at one address."""

from __future__ import annotations

import msgspec

__all__ = ["Nodes"]


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that train together, like ``torchrun --nnodes``.

    Attributes:
        count: How many; every one runs an equal share of the ranks.
        endpoint: ``host:port`` of the first one, as all of them can reach it; needed when there are several.
        rank: Number of this one. The first (0) tunes; the others follow it.
    """

    count: int = 1
    endpoint: str = ""
    rank: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.count, f"node {self.rank} of {self.count}"
        assert self.count == 1 or self.port > 0, f"several nodes meet at host:port, not at {self.endpoint!r}"

    @property
    def host(self) -> str:
        """The part of the endpoint before the colon; empty without one."""
        return self.endpoint.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The part of the endpoint after the colon; 0 without a number there."""
        digits = self.endpoint.rpartition(":")[2]
        return int(digits) if digits.isdecimal() else 0

    def local_ranks(self, ranks: int) -> int:
        """How many of ``ranks`` run on each node."""
        assert ranks % self.count == 0, f"{ranks} ranks cannot be shared equally by {self.count} nodes"
        return ranks // self.count

    def flags(self) -> tuple[str, ...]:
        """Arguments that describe the nodes to a worker; none for a single machine."""
        if self.count == 1:
            return ()
        return (f"--nodes={self.count}", f"--endpoint={self.endpoint}", f"--node-rank={self.rank}")
