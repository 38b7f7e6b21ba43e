"""Where autograd's saved tensors go: hooks that keep them on the host instead of the device."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from advisor.errors import MethodRefusedError
from advisor.problem.units import format_bytes

__all__ = ["HostCopy", "SavedTensorSwap"]


class HostCopy:
    """One range of one device storage, copied to the host.

    Args:
        flat: The range as a one-dimensional tensor.
        pinned: Whether the host memory is page-locked, so that copies need not wait.
    """

    def __init__(self, flat: torch.Tensor, *, pinned: bool) -> None:
        # Held as long as this copy lives: it keeps torch from giving the storage's identity to another storage, so
        # that a match in the cache is a match. An address alone is reused as soon as the storage is freed.
        self.source = StorageWeakRef(flat.untyped_storage())  # type: ignore[no-untyped-call]
        self.device = flat.device
        self.host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=pinned)
        self.host.copy_(flat, non_blocking=pinned)
        self._copied = None
        if flat.device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(flat.device))

    @property
    def bytes(self) -> int:
        """Bytes that the copy takes on the host."""
        return self.host.numel() * self.host.element_size()

    def to_device(self) -> torch.Tensor:
        """The range as a new one-dimensional tensor on the device it came from."""
        if self._copied is not None:
            # The backward pass may run on another stream than the copy did.
            torch.cuda.current_stream(self.device).wait_event(self._copied)
        if self.device.type == "cpu":
            return self.host.clone()
        return self.host.to(self.device, non_blocking=True)


class _Swapped:
    """What the graph holds in place of a tensor."""

    def __init__(self, copy: HostCopy, tensor: torch.Tensor, offset: int) -> None:
        self.copy = copy
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = offset


class _Passed:
    """A tensor that stayed, with the version that autograd would have checked."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version


class SavedTensorSwap:
    """Keeps the tensors that autograd saves in a forward pass on the host until the backward pass asks for them.

    Parameters, buffers, integer tensors and small tensors stay where they are. A tensor that is saved several times,
    whole or as a view, is copied once. A copy is taken when the tensor is saved, so a later in-place write cannot
    change it; a tensor that stayed and was written to since is an error, as it is without hooks.

    Args:
        model: Whose parameters and buffers to leave alone.
        min_bytes: Leave smaller tensors where they are.
        max_host_bytes: Host memory that all living copies may take, as it is allocated: in powers of two. Page-locked
            memory cannot be paged out, so too much of it takes the whole machine down, not this process alone.

    Attributes:
        swapped_bytes: Host bytes copied since the start of the last forward pass.
    """

    def __init__(self, model: torch.nn.Module, *, min_bytes: int, max_host_bytes: int) -> None:
        self._model = model
        self._min_bytes = min_bytes
        self._max_host_bytes = max_host_bytes
        self._locked_at_most = 0
        self._cache: weakref.WeakValueDictionary[tuple[Any, ...], HostCopy] = weakref.WeakValueDictionary()
        self._own_storages: set[int] = set()
        self.swapped_bytes = 0

    @contextlib.contextmanager
    def context(self) -> Generator[None, None, None]:
        """Enter around a forward pass."""
        own = (*self._model.parameters(), *self._model.buffers())
        self._own_storages = {tensor.untyped_storage()._cdata for tensor in own}
        self.swapped_bytes = 0
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield

    def live_host_bytes(self) -> int:
        """Bytes of all copies that some graph still holds."""
        return sum(copy.bytes for copy in self._cache.values())

    def pack(self, tensor: torch.Tensor) -> _Swapped | _Passed:
        """What to keep in the graph for ``tensor``.

        Raises:
            MethodRefusedError: Its copy would take more host memory than is allowed.
        """
        if not self._wants(tensor):
            return _Passed(tensor)
        start, length = _storage_range(tensor)
        storage = tensor.untyped_storage()
        # The storage's identity, not its address. The version tells apart contents before and after a write in place.
        key = (storage._cdata, tensor._version, tensor.dtype, start, length)
        copy = self._cache.get(key)
        if copy is None:
            self._reserve(length * tensor.element_size())
            with torch.no_grad():
                flat = tensor.as_strided((length,), (1,), start)
                copy = HostCopy(flat, pinned=tensor.device.type == "cuda")
            self._cache[key] = copy
            self.swapped_bytes += copy.bytes
        expired = copy.source.expired()  # type: ignore[no-untyped-call]
        assert not expired, "a copy was found for a storage that no longer exists"
        return _Swapped(copy, tensor, int(tensor.storage_offset()) - start)

    def unpack(self, kept: _Swapped | _Passed) -> torch.Tensor:
        """The tensor again, on its device.

        Raises:
            RuntimeError: It stayed on the device and was modified in place since.
        """
        if isinstance(kept, _Passed):
            if kept.tensor._version != kept.version:
                raise RuntimeError(
                    "a tensor needed for the gradient was modified by an inplace operation: shape "
                    f"{tuple(kept.tensor.shape)}, version {kept.tensor._version}, expected version {kept.version}"
                )
            return kept.tensor
        return kept.copy.to_device().as_strided(kept.size, kept.stride, kept.offset)

    def _reserve(self, count: int) -> None:
        """Refuse a copy that does not fit, before its memory is taken."""
        self._locked_at_most += _allocated(count)
        if self._locked_at_most <= self._max_host_bytes:
            return
        # Copies that are gone are not noticed when they go, but counted out when it matters: this is on the way of
        # every saved tensor.
        self._locked_at_most = _allocated(count) + sum(_allocated(copy.bytes) for copy in self._cache.values())
        if self._locked_at_most > self._max_host_bytes:
            raise MethodRefusedError(
                f"swap needs more than {format_bytes(self._max_host_bytes)} of page-locked host memory; give smaller "
                "micro-batches, checkpoint the blocks too, or swap only larger tensors (min_bytes)"
            )

    def _wants(self, tensor: torch.Tensor) -> bool:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return False  # Subclasses and sparse tensors have no single storage to copy.
        if not tensor.is_floating_point() or tensor.is_neg():
            return False  # Integers are small; a lazily negated view has not the storage's values.
        if tensor.numel() == 0 or tensor.numel() * tensor.element_size() < self._min_bytes:
            return False
        return tensor.untyped_storage()._cdata not in self._own_storages


def _allocated(count: int) -> int:
    """Bytes that torch's allocator of page-locked memory takes for ``count``: the next power of two."""
    return 1 << (count - 1).bit_length()


def _storage_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Start and length, in elements, of the part of the storage to copy for a tensor.

    The tensor's own extent, so that all views of the same extent share one copy; but the whole storage when the
    extent has gaps, as for the query, key and value sliced from one projection, which then share one copy too.
    """
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    if extent <= tensor.numel():
        return int(tensor.storage_offset()), extent
    return 0, tensor.untyped_storage().nbytes() // tensor.element_size()
