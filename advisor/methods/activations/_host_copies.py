"""Saved tensors on the host instead of the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from advisor.errors import MethodRefusedError
from advisor.text.units import format_bytes
from advisor.training.memory_side import Side, memory_of
from advisor.training.saved.tensor_pipeline import Encoded, Place, SavedTensorStage

__all__ = ["HostBound", "HostCopy", "MoveToHost", "is_on_gpu"]


class HostCopy:
    """A one-dimensional tensor, copied to the host; from a GPU to page-locked memory, so that copies need not wait."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.device = flat.device
        pinned = is_on_gpu(flat)
        with memory_of(Side.HOST):
            self.host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=pinned)
        self.host.copy_(flat, non_blocking=pinned)
        self.copied: torch.cuda.Event | None = None
        if pinned:
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record(torch.cuda.current_stream(flat.device))

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

    ``max_bytes`` may be allocated, in powers of two. Page-locked memory cannot be paged out: too much of it takes down
    the whole machine, not only this process.

    Attributes:
        copies: The copies that some graph still holds.
    """

    def __init__(self, method: str, max_bytes: int) -> None:
        self.copies: weakref.WeakSet[HostCopy] = weakref.WeakSet()
        self._method = method
        self._max_bytes = max_bytes
        self._locked_at_most = 0

    def copied(self, flat: torch.Tensor, copy: Callable[[torch.Tensor], HostCopy]) -> HostCopy:
        """The copy of a tensor that ``copy`` makes.

        Raises:
            MethodRefusedError: It does not fit; its memory has not been taken.
        """
        self._locked_at_most += _allocated(flat)
        # Whether copies are gone is only looked up when it matters: this runs for every saved tensor.
        if self._locked_at_most > self._max_bytes:
            self._locked_at_most = _allocated(flat) + sum(_allocated(one.host) for one in self.copies)
        if self._locked_at_most > self._max_bytes:
            raise MethodRefusedError(
                f"{self._method} needs more than {format_bytes(self._max_bytes)} of page-locked host memory; give "
                "smaller micro-batches, checkpoint the blocks too, or swap only larger tensors (min_bytes)"
            )
        made = copy(flat)
        self.copies.add(made)
        return made


class MoveToHost(SavedTensorStage):
    """The stage that copies a tensor to the host as it is saved, and back when the backward pass needs it.

    Tensors of fewer than ``min_bytes`` stay, whether small as saved or by an earlier stage.
    """

    place = Place.HOST
    exact = True

    def __init__(self, min_bytes: int, bound: HostBound) -> None:
        self._min_bytes = min_bytes
        self._bound = bound

    def accepts(self, tensor: torch.Tensor) -> bool:
        """Every tensor that is not small."""
        return tensor.nbytes >= self._min_bytes

    def encode(self, flat: torch.Tensor) -> Encoded | None:
        """Copy it now."""
        if not self.accepts(flat):
            return None
        copy = self._bound.copied(flat, HostCopy)
        return Encoded(None, lambda _: copy.to_device())


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether its memory is that of a GPU: a fake tensor has none, and no stream to wait for."""
    return tensor.device.type == "cuda" and not isinstance(tensor, FakeTensor)


def _allocated(tensor: torch.Tensor) -> int:
    """Bytes of page-locked memory that torch's allocator takes for a tensor: the next power of two."""
    return 1 << (tensor.nbytes - 1).bit_length()
