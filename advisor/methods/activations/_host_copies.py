"""Saved tensors on the host instead of the device."""

from __future__ import annotations

import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from advisor.errors import MethodRefusedError
from advisor.text.units import format_bytes
from advisor.training.memory_side import Side, memory_of
from advisor.training.saved.pipeline import Encoded, Place

__all__ = ["HostBound", "HostCopy", "MoveToHost", "is_on_gpu"]


class HostCopy:
    """A flat tensor, copied to the host.

    Args:
        flat: A one-dimensional tensor.
        pinned: Whether the host memory is page-locked, so that copies need not wait.
    """

    def __init__(self, flat: torch.Tensor, *, pinned: bool) -> None:
        self.device = flat.device
        with memory_of(Side.HOST):
            self.host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=pinned)
        self.host.copy_(flat, non_blocking=pinned)
        self.copied: torch.cuda.Event | None = None
        if is_on_gpu(flat):
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record(torch.cuda.current_stream(flat.device))

    @property
    def bytes(self) -> int:
        """Bytes that the copy takes on the host."""
        return self.host.numel() * self.host.element_size()

    def to_device(self) -> torch.Tensor:
        """The values as a new one-dimensional tensor on the device they came from."""
        if self.copied is not None:
            # The backward pass may run on another stream than the copy did.
            torch.cuda.current_stream(self.device).wait_event(self.copied)
        if self.device.type == "cpu":
            with memory_of(Side.DEVICE):
                return self.host.clone()
        return self.host.to(self.device, non_blocking=True)


class HostBound:
    """Counts living copies, and refuses those that would take more host memory than is allowed.

    Args:
        method: Name of the method, for the refusal.
        max_bytes: Host memory that all living copies may take, as it is allocated: in powers of two. Page-locked
            memory cannot be paged out, so too much of it takes the whole machine down, not this process alone.
    """

    def __init__(self, method: str, max_bytes: int) -> None:
        self._method = method
        self._max_bytes = max_bytes
        self._locked_at_most = 0
        self._copies: weakref.WeakSet[HostCopy] = weakref.WeakSet()

    def live_bytes(self) -> int:
        """Bytes of all copies that some graph still holds."""
        return sum(copy.bytes for copy in self._copies)

    def reserve(self, count: int) -> None:
        """Refuse a copy that does not fit, before its memory is taken.

        Raises:
            MethodRefusedError: It does not fit.
        """
        self._locked_at_most += _allocated(count)
        if self._locked_at_most <= self._max_bytes:
            return
        # Copies that are gone are not noticed when they go, but counted out when it matters: this is on the way of
        # every saved tensor.
        self._locked_at_most = _allocated(count) + sum(_allocated(copy.bytes) for copy in self._copies)
        if self._locked_at_most > self._max_bytes:
            raise MethodRefusedError(
                f"{self._method} needs more than {format_bytes(self._max_bytes)} of page-locked host memory; give "
                "smaller micro-batches, checkpoint the blocks too, or swap only larger tensors (min_bytes)"
            )

    def add(self, copy: HostCopy) -> None:
        """Count a copy for as long as it lives."""
        self._copies.add(copy)


class MoveToHost:
    """The stage that copies a tensor to the host as it is saved, and back when it is asked for.

    Args:
        min_bytes: Leave smaller tensors where they are, whether small as saved or by an earlier stage.
        bound: The host memory that may be taken.

    Attributes:
        swapped_bytes: Host bytes copied since the start of the last forward pass.
    """

    place = Place.HOST
    exact = True

    def __init__(self, *, min_bytes: int, bound: HostBound) -> None:
        self.swapped_bytes = 0
        self._min_bytes = min_bytes
        self._bound = bound

    def begin(self) -> None:
        """Count from zero."""
        self.swapped_bytes = 0

    def accepts(self, tensor: torch.Tensor) -> bool:
        """Every tensor that is not small."""
        return tensor.numel() * tensor.element_size() >= self._min_bytes

    def encode(self, flat: torch.Tensor) -> Encoded | None:
        """Copy it now.

        Raises:
            MethodRefusedError: The copy would take more host memory than is allowed.
        """
        count = flat.numel() * flat.element_size()
        if count < self._min_bytes:
            return None
        self._bound.reserve(count)
        copy = HostCopy(flat, pinned=is_on_gpu(flat))
        self._bound.add(copy)
        self.swapped_bytes += copy.bytes
        return Encoded(None, lambda _: copy.to_device())


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether its memory is that of a GPU: a fake tensor has none, and no stream to wait for."""
    return tensor.device.type == "cuda" and not isinstance(tensor, FakeTensor)


def _allocated(count: int) -> int:
    """Bytes that torch's allocator of page-locked memory takes for ``count``: the next power of two."""
    return 1 << (count - 1).bit_length()
