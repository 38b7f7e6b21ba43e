"""Objects that an autograd graph holds in place of saved tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["DelayedTensor", "KeptRange", "PassedTensor", "SavedTensor", "check_version", "storage_range"]


class KeptRange:
    """One range of one storage, as the stages left it."""

    def __init__(self, source: torch.UntypedStorage) -> None:
        # While it lives, torch gives the storage's identity to no other storage, so that a match in the cache is a
        # match. An address is reused as soon as the storage is freed.
        self.source = StorageWeakRef(source)  # type: ignore[no-untyped-call]
        self.left: torch.Tensor | None = None
        self.restores: list[Callable[[Any], torch.Tensor]] = []
        self.users = 0
        self._restored: torch.Tensor | None = None

    def restore(self) -> torch.Tensor:
        """The range as a flat tensor, restored once and held until all its users have read it."""
        self.users -= 1
        flat = self._restored
        if flat is None:
            flat = self.left
            for restore in reversed(self.restores):
                flat = restore(flat)
            assert flat is not None, "a range without stages is not kept"
        self._restored = flat if self.users > 0 else None
        return flat


class SavedTensor:
    """Takes a tensor's place in the graph."""

    def __init__(self, kept: KeptRange, tensor: torch.Tensor, offset: int) -> None:
        kept.users += 1
        self.kept = kept
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = offset

    def unpack(self) -> torch.Tensor:
        """The tensor as a view of its restored range."""
        return self.kept.restore().as_strided(self.size, self.stride, self.offset)


class PassedTensor:
    """A tensor kept as it is, with the version that autograd would have checked."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # An operator's result references its graph: holding it would make a permanent cycle.
        self.tensor = tensor if tensor.grad_fn is None else tensor.detach()
        self.version = tensor._version

    def unpack(self) -> torch.Tensor:
        """The tensor, if it was not written to since."""
        check_version(self.tensor, self.version)
        return self.tensor


class DelayedTensor:
    """A tensor to be packed once the operator that saves it has returned.

    Attributes:
        tensor: The tensor as saved, until it is packed.
        exact: Whether it must come back with the same bits.
        decided: What the graph then holds.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.exact = False
        self.decided: SavedTensor | PassedTensor | None = None

    def shares(self, other: torch.Tensor) -> bool:
        """Whether it lies in the storage of another tensor."""
        return (
            self.tensor is not None
            and self.tensor.layout is other.layout is torch.strided
            and self.tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
        )

    def unpack(self) -> torch.Tensor:
        """What the graph holds for it."""
        assert self.decided is not None, "unpacked before the operator that saved it returned"
        return self.decided.unpack()


def check_version(tensor: torch.Tensor, expected: int) -> None:
    """Raise as autograd does if a tensor was written to since it was saved: it checks only its own tensors."""
    if tensor._version != expected:
        raise RuntimeError(
            "a tensor needed for the gradient was modified by an inplace operation: shape "
            f"{tuple(tensor.shape)}, version {tensor._version}, expected version {expected}"
        )


def storage_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Start and length, in elements, of the part of the storage to store for a tensor.

    All views of the same extent share one copy. A tensor with gaps, such as a query sliced from a projection, gets the
    whole storage, which the key and the value share.
    """
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    if extent <= tensor.numel():
        return int(tensor.storage_offset()), extent
    return 0, tensor.untyped_storage().nbytes() // tensor.element_size()
