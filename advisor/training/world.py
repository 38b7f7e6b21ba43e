"""The processes that train one model together, as one rank sees them.

A single process is a world of one, so callers need no special case. With several, torch.distributed must have been
initialized (``torchrun`` and ``torch.distributed.init_process_group`` in the user's training).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

__all__ = ["World", "current_world"]

_T = TypeVar("_T")


class World:
    """This process and those that it trains with.

    Args:
        rank: Number of this process, from 0.
        size: Number of processes.
        group: Process group for agreement on the CPU; ``None`` in a world of one.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.size = size
        self._group = group

    def agreed(self, value: _T, kind: Any = Any) -> _T:
        """Broadcast rank 0's decision: one that depends on a clock must not differ between ranks.

        It is sent as data: a pickled object could run arbitrary code.

        Args:
            value: This rank's own decision.
            kind: The type that msgspec decodes it to; default: numbers, text and lists of them.
        """
        if self.size == 1:
            return value
        content = bytearray(msgspec.msgpack.encode(value) if self.rank == 0 else b"")
        length = torch.tensor(len(content))
        dist.broadcast(length, src=0, group=self._group)
        if self.rank > 0:
            content = bytearray(int(length))
        held = torch.frombuffer(content, dtype=torch.uint8)
        dist.broadcast(held, src=0, group=self._group)
        decided: _T = msgspec.msgpack.decode(content, type=kind)
        return decided

    def total(self, value: float) -> float:
        """The sum over all ranks."""
        return self.totals([value])[0]

    def totals(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over all ranks; every rank must give equally many."""
        if self.size == 1:
            return list(values)
        held = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(held, group=self._group)
        summed: list[float] = held.tolist()
        return summed

    def wait(self) -> None:
        """Wait for every rank."""
        if self.size > 1:
            dist.barrier(group=self._group)


class _Alike(World):
    """Imaginary processes that do the same as this one: torch's fake process group sends nothing."""

    def agreed(self, value: _T, kind: Any = Any) -> _T:
        return value

    def totals(self, values: Sequence[float]) -> list[float]:
        return [value * self.size for value in values]

    def wait(self) -> None:
        return


_ALONE = World()
_known: tuple[dist.ProcessGroup, World] | None = None


def current_world() -> World:
    """The world that this process trains in, as torch.distributed knows it.

    Every rank must make its first call at the same point of the program, because it creates a process group.
    """
    global _known
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return _ALONE
    default = dist.group.WORLD
    assert default is not None, "torch.distributed is initialized"
    if _known is None or _known[0] is not default:
        if dist.get_backend() == "fake":
            _known = (default, _Alike(dist.get_rank(), dist.get_world_size()))
            return _known[1]
        # A group on the CPU: ranks agree there, and must not wait for a device's queue.
        group = dist.new_group(backend="gloo", timeout=_patience(default))
        _known = (default, World(dist.get_rank(), dist.get_world_size(), group))
    return _known[1]


def _patience(group: dist.ProcessGroup) -> timedelta | None:
    """How long a group waits for a late rank; ``None`` if unknown.

    A new group would use torch's default of 30 minutes, not the timeout of the training's group.
    """
    backends = (group._get_backend(device) for device in group._device_types)
    said = [getattr(getattr(backend, "options", None), "_timeout", None) for backend in backends]
    return max((timeout for timeout in said if isinstance(timeout, timedelta)), default=None)
