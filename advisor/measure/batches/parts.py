"""What is in a batch that may grow with it: tensors, arrays, lists, and the tensors inside of objects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from advisor.training.batch.tree import PLAIN, leaves_of

__all__ = ["Part", "Parts", "numbers_in", "parts_of"]

_DEPTH = 3
"""How far objects are looked into for tensors."""


class Part(NamedTuple):
    """Something in a batch that may grow with it.

    Attributes:
        sizes: Of a tensor or an array; the length of a list; nothing for another object.
        kind: ``"array"``, ``"list"``, ``"words"`` for a list of numbers or words, ``"packed"`` for a packed sequence,
            ``"object"``, or ``"inside"`` for what is in an object.
    """

    sizes: tuple[int, ...]
    kind: str


Parts = dict[str, Part]


def parts_of(batch: Any) -> Parts:
    """Everything in a batch that may grow with it, by its path."""
    parts: Parts = {}
    for leaf in leaves_of(batch):
        if leaf.shape is not None:
            parts[leaf.path] = Part(leaf.shape, _kind_of(leaf.value))
        elif not isinstance(leaf.value, PLAIN):
            parts[leaf.path] = Part((), "packed" if isinstance(leaf.value, PackedSequence) else "object")
            for path, sizes in _inside(leaf.value, leaf.path, _DEPTH):
                parts[path] = Part(sizes, "inside")
    return parts


def numbers_in(parts: Parts) -> int:
    """How many numbers the tensors and arrays of a batch have together."""
    return sum(math.prod(part.sizes) for part in parts.values() if part.kind in ("array", "inside"))


def _kind_of(value: Any) -> str:
    if type(value) not in (list, tuple):
        return "array"
    return "words" if value and all(isinstance(one, PLAIN) for one in value) else "list"


def _inside(value: Any, path: str, depth: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors in an object that torch does not know, which tell how many samples it has."""
    fields = getattr(value, "_fields", None)
    named = {name: getattr(value, name) for name in fields} if fields else getattr(value, "__dict__", {})
    for name, inner in {**named, **(value if isinstance(value, Mapping) else {})}.items():
        below = f"{path}.{name}" if path else str(name)
        if isinstance(inner, torch.Tensor):
            yield below, tuple(inner.shape)
        elif depth and not isinstance(inner, PLAIN):
            yield from _inside(inner, below, depth - 1)
