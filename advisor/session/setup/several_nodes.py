"""What people say about several machines: how many, where they meet, which one this is."""

from __future__ import annotations

import re

from advisor.errors import OptionError
from advisor.text.printable import quoted
from advisor.text.ranges import digits, whole
from advisor.trial.nodes import Nodes

__all__ = ["nodes_from"]

_HOST = re.compile(r"[\w.:%\[\]-]{1,255}")
"""A name or an address."""


def nodes_from(count: int | None = None, endpoint: str | None = None, rank: int | None = None) -> Nodes:
    """Check what was said, with the names that ``torchrun`` has for it.

    Raises:
        OptionError: Something is missing or outside its rule.
    """
    if count is None and endpoint is not None:
        raise OptionError(
            f"--rdzv-endpoint needs --nnodes, the number of machines, but got {quoted(endpoint)} alone. Leave it out "
            "on one machine."
        )
    count = 1 if count is None else whole(count, "--nnodes")
    rank = 0 if rank is None else whole(rank, "--node-rank", least=0)
    if rank >= count:
        raise OptionError(
            f"--node-rank must be from 0 (the machine that tunes) to {count - 1}, but got {rank}. "
            "--nnodes says how many machines there are."
        )
    if count == 1:
        return Nodes()
    host, _, port = (endpoint if isinstance(endpoint, str) else "").rpartition(":")
    if not _HOST.fullmatch(host) or not 0 < (digits(port) or 0) < 65536:
        raise OptionError(
            "Several machines need --rdzv-endpoint HOST:PORT, the first one's address as all of them can reach it, "
            f"but {'none is given' if endpoint is None else f'got {quoted(endpoint)}'}."
        )
    return Nodes(count=count, endpoint=endpoint or "", rank=rank)
