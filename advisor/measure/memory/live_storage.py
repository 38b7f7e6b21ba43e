"""Follows every live tensor storage of one device, operation by operation, and raises when a limit is passed."""

from __future__ import annotations

import functools
import time
import weakref
from typing import Any

import msgspec
import torch

from advisor.errors import DeviceOutOfMemoryError
from advisor.measure.memory.operator_mode import OperatorMode
from advisor.measure.memory.storages import HostData, storages_of
from advisor.text.units import format_bytes

__all__ = ["LiveStorages"]


class _Known(msgspec.Struct):
    reference: weakref.ref[torch.UntypedStorage]
    size: int
    epoch: int


class LiveStorages(OperatorMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that knows which storages live at every moment, except those of ``host_data``.

    What an operation allocates and frees before it returns, and what compiled code allocates, is visible to
    :mod:`advisor.measure.memory.allocation_log` alone. Above the limit :class:`DeviceOutOfMemoryError` is raised.

    Attributes:
        live_bytes: Live bytes now.
        peak_bytes: Most live bytes so far.
        epoch: Number stamped on storages as they are born; raised by :meth:`next_epoch`.
        deaths_of_old: ``(time in ns, bytes)`` of storages from before the first epoch that were freed since.
        exceeded: The error that was raised, kept in case the user's code catches it.
    """

    def __init__(self, device: torch.device, host_data: HostData, limit_bytes: int | None = None) -> None:
        super().__init__()
        self.device = device
        self.live_bytes = 0
        self.peak_bytes = 0
        self.epoch = 0
        self.deaths_of_old: list[tuple[int, int]] = []
        self.exceeded: DeviceOutOfMemoryError | None = None
        self._host_data = host_data
        self._limit_bytes = limit_bytes
        self._known: dict[int, _Known] = {}

    def add(self, tree: Any) -> None:
        """Count the storages behind the tensors of ``tree``, if they are not counted yet."""
        for key, storage in storages_of(tree, self.device).items():
            self._see(key, storage)

    def add_constant(self, size: int) -> None:
        """Count ``size`` bytes that live throughout."""
        self._grow(size)

    def next_epoch(self) -> None:
        """Stamp what is born from now on with a new number."""
        self.epoch += 1

    def born_in(self, epoch: int) -> int:
        """Live bytes of storages born in an epoch."""
        self._look_again()
        return sum(known.size for known in self._known.values() if known.epoch == epoch)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.add(result)
        return result

    def _see(self, key: int, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        known = self._known.get(key)
        if known is not None:
            growth, known.size = size - known.size, size  # not zero after ``resize_``
            self._grow(growth)
        elif size and storage not in self._host_data:
            reference = weakref.ref(storage, functools.partial(self._forget, key))
            self._known[key] = _Known(reference, size, self.epoch)
            self._grow(size)

    def _look_again(self) -> None:
        """Notice storages emptied in place, as sharded parameters are after their use: no operation says so."""
        for known in self._known.values():
            storage = known.reference()
            if storage is not None:
                size = storage.nbytes()
                self.live_bytes += size - known.size
                known.size = size

    def _forget(self, key: int, _reference: weakref.ref[torch.UntypedStorage]) -> None:
        known = self._known.pop(key)
        self.live_bytes -= known.size
        if known.epoch == 0:
            self.deaths_of_old.append((time.time_ns(), known.size))

    def _grow(self, growth: int) -> None:
        self.live_bytes += growth
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if growth > 0 and self._limit_bytes is not None and self.live_bytes > self._limit_bytes:
            self._look_again()
            if self.live_bytes <= self._limit_bytes:
                return
            self.exceeded = DeviceOutOfMemoryError(
                f"memory must stay within {format_bytes(self._limit_bytes)}, but {format_bytes(self.live_bytes)} were "
                "live before the step was over"
            )
            raise self.exceeded
