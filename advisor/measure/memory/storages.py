"""Which tensor storages exist, each counted once however many tensors look at it."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

__all__ = ["HostData", "StorageSet", "bytes_of", "is_in", "living_tensors", "storages_of", "tensors_in", "view_bytes"]


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Every plain tensor in a nest of containers; tensor subclasses that wrap others are opened."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield from _plain(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors_in([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten()
        for name in names:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):  # a distributed tensor names its mesh of devices too
                yield from _plain(part)
    elif tensor.layout == torch.sparse_coo:
        yield tensor._indices()
        yield tensor._values()
    elif not is_lazy(tensor) and torch._C._has_storage(tensor):
        yield tensor


def storages_of(tree: Any, device: torch.device) -> dict[int, torch.UntypedStorage]:
    """The distinct storages on ``device`` behind the tensors of ``tree``, by their identity."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors_in(tree):
        storage = tensor.untyped_storage()
        # The storage's own device: tensors that a compiler traces with claim a device but have no memory there.
        if storage.device.type == device.type:
            found[storage._cdata] = storage
    return found


def bytes_of(tree: Any, device: torch.device) -> int:
    """Bytes of those storages."""
    return sum(storage.nbytes() for storage in storages_of(tree, device).values())


def living_tensors() -> list[torch.Tensor]:
    """Every tensor that Python can reach at this moment, and the gradients of those that are leaves.

    Collects garbage first, so that what only a reference cycle holds does not count.
    """
    gc.collect()
    things = gc.get_objects()
    # ``type`` instead of ``isinstance``: proxies answer ``__class__`` with side effects. Of hundreds of thousands of
    # things there are a few kinds, and not every kind can be hashed.
    kinds = list(map(type, things))
    known = list(map(id, kinds))
    each = dict(zip(known, kinds, strict=True))
    of_tensors = {number for number, kind in each.items() if issubclass(kind, torch.Tensor)}
    tensors = list(itertools.compress(things, map(of_tensors.__contains__, known)))
    gradients = [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    return tensors + gradients


StorageSet = weakref.WeakValueDictionary[int, torch.UntypedStorage]
"""Living storages by their identity."""


def is_in(known: StorageSet, storage: torch.UntypedStorage) -> bool:
    """Whether it is among them: identities of those that were freed are used again."""
    return known.get(storage._cdata) is storage


class HostData:
    """Storages that are data waiting on the host, not memory of the training.

    On a CPU the waiting batches and the data set lie in the same memory as the model. They are left out of the
    count, as they would be with an accelerator.
    """

    def __init__(self) -> None:
        self._storages: StorageSet = weakref.WeakValueDictionary()

    def add(self, tree: Any, device: torch.device) -> None:
        """Leave the storages behind the tensors of ``tree`` out of every count."""
        self._storages.update(storages_of(tree, device))

    def add_living(self, device: torch.device) -> None:
        """Leave everything out that exists now."""
        self.add(living_tensors(), device)

    def include(self, other: HostData) -> None:
        """Leave out what another one leaves out as well."""
        self._storages.update(other._storages)

    def without(self, other: HostData) -> HostData:
        """Those of these storages that another one does not hold."""
        rest = HostData()
        rest._storages.update({key: one for key, one in self._storages.items() if one not in other})
        return rest

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return is_in(self._storages, storage)


def view_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes that copies of these tensors would take on another device."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
