"""A batch as a tree of tensors: move it to a device, split it.

A batch is any nesting of mappings, lists, tuples and dataclasses. By default its tensors hold the samples in dimension
0, and micro-batches share everything else. ``dims`` overrides this: :data:`~advisor.workload.batch_layout.SampleDims`.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from advisor.errors import WorkloadError
from advisor.workload.batch_layout import UNCUT, SampleDims

__all__ = [
    "IGNORED_TARGET",
    "PLAIN",
    "Leaf",
    "assumed_dims",
    "cut",
    "leaves_of",
    "map_tensors",
    "move",
    "sample_count",
    "split",
    "with_leaf",
]

_LEAVES = (torch.Tensor, int, float, str, bytes, type(None))
PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Leaves of a batch that have no size."""

IGNORED_TARGET = -100
"""The label that cross entropy leaves out of its mean (torch's default ``ignore_index``)."""


class Leaf(NamedTuple):
    """A leaf of a batch, or a list that may hold one entry for each sample.

    The path joins keys, indices and fields by dots. The shape is that of a tensor or array, or the length of a list.
    """

    path: str
    value: Any
    shape: tuple[int, ...] | None


def move(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor on ``device``; tensors already there are not copied."""
    leaves = _flat(batch)
    if leaves is None:
        return _mapped(batch, "", lambda _, leaf: _moved(leaf, device))
    mapped = [leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if isinstance(batch, torch.Tensor):
        return mapped[0]
    return type(batch)(mapped) if isinstance(batch, list | tuple) else _mapping_like(batch, mapped)


def map_tensors(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with ``function`` applied to every tensor."""
    return _mapped(batch, "", lambda _, leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def with_leaf(batch: Any, path: str, value: Any) -> Any:
    """The batch with another value at one path only, even if the same tensor is in it twice."""
    return _mapped(batch, "", lambda own, leaf: value if own == path else leaf)


def sample_count(batch: Any, dims: SampleDims | None = None) -> int:
    """Samples in the batch: the common size of dimension 0 of its tensors, or of the dimensions given.

    Raises:
        WorkloadError: Nothing holds samples, or the leaves disagree on how many.
    """
    sizes = _sizes(batch, dims)
    if not sizes:
        raise WorkloadError(
            f"a batch must hold tensors with the samples in dimension 0, but {type(batch).__name__} holds none; "
            "return tensors from make_batch"
        )
    if len(set(sizes.values())) > 1:
        if dims is not None:
            raise WorkloadError(
                "every part of a batch must hold as many samples, but this one has "
                + ", ".join(f"{size} in {path or 'the batch'}" for path, size in sizes.items())
            )
        raise WorkloadError(
            "every tensor of a batch must have the samples in dimension 0, but their first sizes are "
            f"{sorted(set(sizes.values()))}; expand the others over the batch, make them buffers of the model, or say "
            "where the samples are: apply_policy(..., sample_dims={path: dimension, or None if it is shared})"
        )
    return next(iter(sizes.values()))


def split(batch: Any, size: int, dims: SampleDims | None = None) -> list[Any]:
    """Split a batch into as few micro-batches of at most ``size`` samples as possible, equal up to one sample.

    A batch without a part that has one entry per sample stays whole.

    Raises:
        WorkloadError: It must be split and cannot be.
    """
    assert size >= 1, size
    if dims is None and _fits(batch, size):
        return [batch]
    if dims is not None and not any(isinstance(dim, int) for dim in dims.values()):
        return [batch]
    samples = sample_count(batch, dims)
    if samples <= size:
        return [batch]
    known = assumed_dims(batch, samples) if dims is None else dims
    if uncut := [path or "the batch" for path, dim in known.items() if dim == UNCUT]:
        raise WorkloadError(
            f"a batch of {samples} samples must be cut into micro-batches of {size}, but {', '.join(uncut)} has no "
            "entry of its own for each sample; give batches of at most micro_batch samples"
        )
    count = math.ceil(samples / size)
    return cut(batch, [samples - samples * (count - number) // count for number in range(count + 1)], known)


def cut(batch: Any, bounds: Sequence[int], dims: SampleDims) -> list[Any]:
    """The micro-batches between ``bounds``: the first sample of each, then the number of all.

    Raises:
        WorkloadError: It is unknown whether a part of it holds samples.
    """

    def part(start: int, end: int) -> Any:
        return _mapped(batch, "", lambda path, leaf: _cut(path, leaf, start, end, bounds[-1], dims), dims)

    return [part(start, end) for start, end in itertools.pairwise(bounds)]


def leaves_of(batch: Any) -> Iterator[Leaf]:
    """Every leaf of a batch, and every list and plain tuple before its elements."""
    yield from _leaves(batch, "")


def _leaves(node: Any, path: str) -> Iterator[Leaf]:
    children = _children(node)
    if children is None:
        shape = None if getattr(node, "is_nested", False) else getattr(node, "shape", None)
        yield Leaf(path, node, tuple(int(size) for size in shape) if isinstance(shape, tuple) else None)
        return
    if type(node) in (list, tuple):
        yield Leaf(path, node, (len(node),))
    for name, child in children:
        yield from _leaves(child, _joined(path, name))


def _children(node: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container by name; ``None`` for a leaf."""
    if isinstance(node, PackedSequence):
        return None  # its parts belong together, and one of them stays on the host
    if isinstance(node, Mapping):
        return [(str(key), value) for key, value in node.items()]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return list(zip(node._fields, node, strict=True))
    if type(node) in (list, tuple):
        return [(str(index), value) for index, value in enumerate(node)]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return [(field.name, getattr(node, field.name)) for field in dataclasses.fields(node)]
    if type(node) in pytree.SUPPORTED_NODES:
        values, _ = pytree.SUPPORTED_NODES[type(node)].flatten_fn(node)
        return [(str(index), value) for index, value in enumerate(values)]
    return None


def _mapped(node: Any, path: str, function: Callable[[str, Any], Any], dims: SampleDims | None = None) -> Any:
    """The tree at a path with ``function(path, leaf)`` for every leaf; lists that ``dims`` names count as leaves."""
    children = None if dims is not None and type(node) in (list, tuple) and path in dims else _children(node)
    if children is None:
        return function(path, node)
    made = [_mapped(child, _joined(path, name), function, dims) for name, child in children]
    return _rebuilt(node, made)


def _rebuilt(node: Any, parts: list[Any]) -> Any:
    """A container of the same kind with other parts; mappings of which a copy may share them become a ``dict``."""
    if type(node) in pytree.SUPPORTED_NODES:
        handler = pytree.SUPPORTED_NODES[type(node)]
        return handler.unflatten_fn(parts, handler.flatten_fn(node)[1])
    if isinstance(node, Mapping):
        return _mapping_like(node, parts)
    if isinstance(node, tuple):
        return type(node)(*parts)
    made = copy.copy(node)
    for field, part in zip(dataclasses.fields(node), parts, strict=True):
        object.__setattr__(made, field.name, part)  # works for frozen dataclasses too
    return made


def _mapping_like(node: Mapping[Any, Any], parts: list[Any]) -> Any:
    """Such a mapping with other parts: of a tokenizer's batch, losses read ``batch.input_ids``."""
    if type(node) is dict or not isinstance(node, dict | UserDict):
        return dict(zip(node, parts, strict=True))
    try:
        made = copy.copy(node)
        for key, part in zip(list(node), parts, strict=True):
            made[key] = part
        if made.keys() & getattr(made, "__dict__", {}).keys():  # its attributes are the old parts
            return dict(zip(node, parts, strict=True))
    except Exception:  # whatever a class of the user's does not like
        return dict(zip(node, parts, strict=True))
    return made


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _moved(leaf: Any, device: torch.device) -> Any:
    """A leaf on the device; objects unknown to torch, such as graphs and images, may have their own ``to``."""
    if isinstance(leaf, torch.Tensor):
        return leaf.to(device, non_blocking=True)
    return leaf.to(device) if not isinstance(leaf, PLAIN) and callable(getattr(leaf, "to", None)) else leaf


def _cut(path: str, leaf: Any, start: int, end: int, samples: int, dims: SampleDims) -> Any:
    if path in dims:
        dim = dims[path]
        return leaf if dim is None else _slice(leaf, dim, start, end)
    if isinstance(leaf, PLAIN):
        return leaf
    raise WorkloadError(
        f"a batch of {samples} samples must be cut into micro-batches, but whether {path or 'the batch'} "
        f"({type(leaf).__name__}) has one entry for each sample is not known; say so with "
        f"apply_policy(..., sample_dims={{{path!r}: 0 (or None if it is shared)}}), or give batches of at most "
        "micro_batch samples"
    )


def assumed_dims(batch: Any, samples: int) -> SampleDims:
    """The default layout: samples are in dimension 0 of tensors, and of plain lists and arrays of that length."""
    dims: SampleDims = {}
    for leaf in leaves_of(batch):
        if isinstance(leaf.value, torch.Tensor):
            dims[leaf.path] = 0 if leaf.shape else None
        elif isinstance(leaf.value, list | tuple):
            if len(leaf.value) == samples and all(isinstance(one, PLAIN) for one in leaf.value):
                dims[leaf.path] = 0
        elif leaf.shape is not None:
            dims[leaf.path] = 0 if leaf.shape[:1] == (samples,) else None
    return dims


def _slice(leaf: Any, dim: Any, start: int, end: int) -> Any:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout == torch.strided:
            return leaf.narrow(dim, start, end - start)
        rows = torch.arange(start, end, device=leaf.device)
        part = leaf.to_sparse().index_select(dim, rows)
        return part if leaf.layout == torch.sparse_coo else part.to_sparse(layout=leaf.layout)
    return leaf[(slice(None),) * dim + (slice(start, end),)] if dim else leaf[start:end]


def _fits(batch: Any, size: int) -> bool:
    leaves = _flat(batch)
    if leaves is None:
        leaves = [leaf.value for leaf in leaves_of(batch)]
    return all(leaf.size(0) <= size for leaf in leaves if _has_samples(leaf))


def _sizes(batch: Any, dims: SampleDims | None) -> dict[str, int]:
    """Path -> number of samples, for every leaf that has any."""
    if dims is None:
        return {leaf.path: int(leaf.value.size(0)) for leaf in leaves_of(batch) if _has_samples(leaf.value)}
    sizes = {}
    for leaf in leaves_of(batch):
        dim = dims.get(leaf.path)
        if isinstance(dim, int) and leaf.shape is not None:
            if len(leaf.shape) <= dim:
                raise WorkloadError(
                    f"{leaf.path or 'the batch'} must have its samples in dimension {dim}, but it has "
                    f"{len(leaf.shape)} dimensions; give batches as make_batch makes them"
                )
            sizes[leaf.path] = leaf.shape[dim]
    return sizes


def _has_samples(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _flat(batch: Any) -> Collection[Any] | None:
    """The leaves of the usual batch, a tensor or one container of leaves; ``None`` for any other.

    A general tree walk takes longer than all other overhead of a step.
    """
    kind = type(batch)
    leaves: Collection[Any] = (batch,)
    if kind is tuple or kind is list:
        leaves = batch
    elif kind is dict or (isinstance(batch, Mapping) and not isinstance(batch, dict)):  # A tokenizer's BatchEncoding.
        leaves = batch.values()
    elif not isinstance(batch, torch.Tensor):
        return None
    return leaves if all(isinstance(leaf, _LEAVES) for leaf in leaves) else None
