"""One process that stands for several: for a trace, which needs no values, nothing has to be sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist

__all__ = ["standing_for_ranks"]


@contextlib.contextmanager
def standing_for_ranks(count: int, rank: int = 0) -> Iterator[None]:
    """Be one rank of so many, none of which exists; with one, nothing is changed.

    Args:
        count: The ranks that train together.
        rank: The one to be.
    """
    if count == 1:
        yield
        return
    assert not dist.is_initialized(), "one process makes this trial"
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()
