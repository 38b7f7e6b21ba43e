"""A batch as a tree of tensors: move it to a device, split it, count what its loss averages over.

A batch is any nesting of mappings, lists and tuples. Its tensors hold the samples in dimension 0; everything else
(numbers, strings, ``None``, zero-dimensional tensors) is shared between the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from advisor.errors import WorkloadError

__all__ = ["IGNORED_TARGET", "count_labels", "move", "sample_count", "split"]

_LEAVES = (torch.Tensor, int, float, str, bytes, type(None))

IGNORED_TARGET = -100
"""The label that cross entropy leaves out of its mean (torch's default ``ignore_index``)."""


def move(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor on ``device``; what is there already is not copied."""
    return _map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def sample_count(batch: Any) -> int:
    """Samples in the batch: the common size of dimension 0 of its tensors.

    Raises:
        WorkloadError: There is no tensor, or the tensors disagree.
    """
    sizes = _first_sizes(batch)
    if not sizes:
        raise WorkloadError(
            f"a batch must hold tensors with the samples in dimension 0, but {type(batch).__name__} holds none; "
            "return tensors from make_batch"
        )
    if len(sizes) > 1:
        raise WorkloadError(
            "every tensor of a batch must have the samples in dimension 0, but their first sizes are "
            f"{sorted(sizes)}; expand the others over the batch, or make them buffers of the model"
        )
    return int(sizes.pop())


def split(batch: Any, size: int) -> list[Any]:
    """Cut a batch along dimension 0 into pieces of ``size`` samples; the last may be smaller.

    Raises:
        WorkloadError: It must be cut, and its tensors disagree on the number of samples.
    """
    assert size >= 1, size
    if _fits(batch, size):
        return [batch]
    samples = sample_count(batch)

    def piece(start: int) -> Any:
        length = min(size, samples - start)
        return _map_tensors(batch, lambda leaf: leaf.narrow(0, start, length) if _has_samples(leaf) else leaf)

    return [piece(start) for start in range(0, samples, size)]


def count_labels(batch: Any, *, causal: bool) -> int | None:
    """Targets that a token-level loss averages over, or ``None`` if the batch has no token labels.

    Args:
        batch: A mapping with integer ``labels`` of at least two dimensions, for an answer.
        causal: Whether the loss predicts the next token, so that the first label of a sample is never a target.
    """
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, torch.Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return None
    if causal:
        labels = labels[..., 1:]
    if isinstance(labels, FakeTensor):
        return labels.numel()  # In a trace there are no values: as if each were a target.
    return int((labels != IGNORED_TARGET).sum())


def _fits(batch: Any, size: int) -> bool:
    """Whether no tensor is longer; asked of every batch, so that it is one loop."""
    plain = _plain(batch)
    for leaf in _flat(plain) or pytree.tree_leaves(plain):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.size(0) > size:
            return False
    return True


def _first_sizes(batch: Any) -> set[int]:
    plain = _plain(batch)
    return {int(leaf.size(0)) for leaf in _flat(plain) or pytree.tree_leaves(plain) if _has_samples(leaf)}


def _has_samples(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _plain(batch: Any) -> Any:
    """Mappings that are no ``dict`` (such as a tokenizer's ``BatchEncoding``) as one, for the tree walk."""
    return dict(batch) if not isinstance(batch, dict) and isinstance(batch, Mapping) else batch


def _map_tensors(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    plain = _plain(batch)
    leaves = _flat(plain)
    if leaves is None:
        return pytree.tree_map_only(torch.Tensor, function, plain)
    mapped = [function(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if isinstance(plain, torch.Tensor):
        return mapped[0]
    return dict(zip(plain, mapped, strict=True)) if isinstance(plain, dict) else type(plain)(mapped)


def _flat(plain: Any) -> Collection[Any] | None:
    """The leaves of what nearly every batch is, a tensor or one container of leaves; ``None`` for all else.

    To walk a tree of any kind takes longer than anything else that a step has beside the model's own.
    """
    kind = type(plain)
    leaves: Collection[Any]
    if kind is dict:
        leaves = plain.values()
    elif kind is tuple or kind is list:
        leaves = plain
    else:
        return (plain,) if isinstance(plain, torch.Tensor) else None
    for leaf in leaves:
        if not isinstance(leaf, _LEAVES):
            return None
    return leaves
