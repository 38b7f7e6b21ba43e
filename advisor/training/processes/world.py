"""The processes that train one model together, as one rank sees them.

A single process is a world of one, so callers need no special case. With several, torch.distributed must have been
initialized (``torchrun`` and ``torch.distributed.init_process_group`` in the user's training).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis

__all__ = ["World", "current_world"]

_T = TypeVar("_T")


class World:
    """This process and those that it trains with, or those along one axis of its mesh.

    Args:
        rank: Number of this process, from 0.
        size: Number of processes.
        group: Process group for agreement on the CPU; ``None`` in a world of one.
        device_group: Process group for tensors on the training's device; default: ``group``.
        mesh: How the processes divide the model.
        axes: Axis -> the processes along it; default: all of them are along the data axis.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        group: dist.ProcessGroup | None = None,
        *,
        device_group: dist.ProcessGroup | None = None,
        mesh: Mesh = DATA_ONLY,
        axes: dict[MeshAxis, World] | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device_group = device_group or group
        self.mesh = mesh
        self._group = group
        self._axes = axes or {}

    @property
    def data(self) -> World:
        """The processes that have the same part of the model as this one, each with its share of the batch."""
        return self._axes.get(MeshAxis.DATA, self)

    @property
    def tensor(self) -> World:
        """The processes that have the same blocks and the same samples, each with its slices of the layers."""
        return self._axes.get(MeshAxis.TENSOR, _ALONE)

    @property
    def pipeline(self) -> World:
        """The processes that have the same samples, each with its part of the sequence of blocks."""
        return self._axes.get(MeshAxis.PIPELINE, _ALONE)

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
        dist.broadcast(length, group_src=0, group=self._group)
        if self.rank > 0:
            content = bytearray(int(length))
        held = torch.frombuffer(content, dtype=torch.uint8)
        dist.broadcast(held, group_src=0, group=self._group)
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
_known: tuple[dist.ProcessGroup, dict[Mesh, World]] | None = None


def current_world(mesh: Mesh = DATA_ONLY) -> World:
    """The world that this process trains in, as torch.distributed knows it.

    Every rank must make its first call with each mesh at the same point of the program, because it creates process
    groups.

    Args:
        mesh: How the processes divide the model; its degrees divide their number.
    """
    global _known
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return _ALONE
    default = dist.group.WORLD
    assert default is not None, "torch.distributed is initialized"
    if _known is None or _known[0] is not default:
        _known = (default, {DATA_ONLY: _whole_world(default)})
    worlds = _known[1]
    if mesh not in worlds:
        worlds[mesh] = _divided(worlds[DATA_ONLY], mesh)
    return worlds[mesh]


def _whole_world(default: dist.ProcessGroup) -> World:
    rank, size = dist.get_rank(), dist.get_world_size()
    if dist.get_backend() == "fake":
        return _Alike(rank, size, device_group=default)
    # A group on the CPU: ranks agree there, and must not wait for a device's queue.
    group = dist.new_group(backend="gloo", timeout=_patience(default))
    return World(rank, size, group, device_group=default)


def _divided(whole: World, mesh: Mesh) -> World:
    """The same processes with an axis for each part of the mesh."""
    kind, patience = type(whole), _patience(whole.device_group)
    axes = {}
    for axis in MeshAxis:
        own: World | None = None
        for ranks in _rows(whole.size, mesh, axis):
            # Every rank takes part in the creation of every group.
            device_group = dist.new_group(ranks, timeout=patience)
            group = None if kind is _Alike else dist.new_group(ranks, backend="gloo", timeout=patience)
            if whole.rank in ranks:
                own = kind(ranks.index(whole.rank), len(ranks), group, device_group=device_group)
        assert own is not None, "every rank is in one row of each axis"
        axes[axis] = own if own.size > 1 else _ALONE
    return kind(whole.rank, whole.size, whole._group, device_group=whole.device_group, mesh=mesh, axes=axes)


def _rows(size: int, mesh: Mesh, axis: MeshAxis) -> Iterator[list[int]]:
    """The ranks along an axis, one list for each place on the other axes; tensor is the innermost axis."""
    grid = torch.arange(size).reshape(mesh.pipeline, mesh.degree(MeshAxis.DATA, size), mesh.tensor)
    dimension = (MeshAxis.PIPELINE, MeshAxis.DATA, MeshAxis.TENSOR).index(axis)
    yield from grid.movedim(dimension, -1).reshape(-1, grid.size(dimension)).tolist()


def _patience(group: dist.ProcessGroup | None) -> timedelta | None:
    """How long a group waits for a late rank; ``None`` if unknown.

    A new group would use torch's default of 30 minutes, not the timeout of the training's group.
    """
    if group is None:
        return None
    backends = (group._get_backend(device) for device in group._device_types)
    said = [getattr(getattr(backend, "options", None), "_timeout", None) for backend in backends]
    return max((timeout for timeout in said if isinstance(timeout, timedelta)), default=None)
