"""What the loss of a batch may average over: every way to count its targets that is worth trying, the usual first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from advisor.training.batch.class_weights import ClassWeighing
from advisor.training.batch.tree import Leaf, leaves_of
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import THE_BATCH, Reduction

__all__ = ["by_class", "candidates", "targets_in"]

_MOST_VALUES = 64
"""A tensor of more distinct values has no padding that is worth looking for."""


def candidates(batches: Sequence[Any], dims: SampleDims) -> Iterator[Reduction]:
    """What a loss may do, the most usual first."""
    yield Reduction(kind="sum")
    yield Reduction()
    leaves = _leaves_of_samples(batches[0], dims)
    for leaf in leaves:
        if not _is_array(leaf.value):
            continue
        values = _values([targets_in(batch, leaf.path) for batch in batches])
        if leaf.value.is_floating_point():
            if not bool((values == 0).any()):
                continue  # neither a mask, nor a measurement that is missing in places
            values = torch.zeros(1, dtype=torch.long)
        elif len(values) > _MOST_VALUES:  # of words: padding is one of the outermost, or a usual one
            outermost = torch.stack([values[0], values[1], values[-1]])
            values = torch.unique(torch.cat([outermost, values[(values >= -100) & (values <= 3)]]))
        for value in sorted((int(value) for value in values), key=_unusual):
            for shifted in (False, True) if leaf.value.dim() > 1 else (False,):
                yield Reduction(targets=leaf.path or THE_BATCH, ignore_index=value, shifted=shifted)
    for leaf in leaves:
        yield from _summed(leaf)
    yield from _rows(batches[0], leaves)


def by_class(batches: Sequence[Any], dims: SampleDims, heard: Sequence[ClassWeighing]) -> Iterator[Reduction]:
    """Means over targets that count what their class does, by what the loss was heard to use."""
    for leaf in _leaves_of_samples(batches[0], dims):
        if not _is_array(leaf.value) or leaf.value.is_floating_point() or leaf.value.dtype == torch.bool:
            continue
        values = [int(one) for one in _values([targets_in(batch, leaf.path) for batch in batches])]
        for weighing in heard:
            outside = [value for value in values if not 0 <= value < len(weighing.weights)]
            if len(outside) > 1:
                continue
            told = [] if weighing.ignore_index is None else [weighing.ignore_index]
            for ignored in dict.fromkeys(outside or [*told, -100, *values[:_MOST_VALUES]]):
                for shifted in (False, True) if leaf.value.dim() > 1 else (False,):
                    yield Reduction(
                        targets=leaf.path or THE_BATCH,
                        ignore_index=ignored,
                        shifted=shifted,
                        class_weights=weighing.weights,
                    )


def targets_in(batch: Any, path: str) -> torch.Tensor | None:
    """The tensor at a path; ``None`` if there is none."""
    found = (leaf.value for leaf in leaves_of(batch) if leaf.path == path)
    return next((value for value in found if isinstance(value, torch.Tensor)), None)


def _leaves_of_samples(batch: Any, dims: SampleDims) -> list[Leaf]:
    """Those that have an entry for each sample; targets follow inputs, and are looked at first."""
    return [leaf for leaf in reversed(list(leaves_of(batch))) if isinstance(dims.get(leaf.path), int)]


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.layout == torch.strided


def _values(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    found: torch.Tensor = torch.unique(torch.cat([torch.unique(one) for one in tensors if one is not None]))
    return found


def _summed(leaf: Leaf) -> Iterator[Reduction]:
    """The sum of a mask of weights, or of lengths."""
    value = leaf.value
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_complex() or not bool((value >= 0).all()):
            return
        is_lengths = value.dim() == 1 and not value.is_floating_point()
    elif isinstance(value, list | tuple) and value:
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in value):
            return
        is_lengths = True
    else:
        return
    for shifted in (False, True) if is_lengths else (False,):
        yield Reduction(targets=leaf.path or THE_BATCH, counted="values", shifted=shifted)


def _rows(batch: Any, leaves: Sequence[Leaf]) -> Iterator[Reduction]:
    """What the samples of a list have different numbers of, such as boxes or frames."""
    for leaf in leaves:
        if not isinstance(leaf.value, list | tuple):
            continue
        inside = re.compile(re.escape(f"{leaf.path}." if leaf.path else "") + r"\d+(?:\.(.*))?")
        found: dict[str, set[int]] = {}
        for one in leaves_of(batch):
            match = inside.fullmatch(one.path)
            if match and isinstance(one.value, torch.Tensor) and one.value.dim():
                pattern = ".".join(part for part in (leaf.path, "*", match[1]) if part)
                found.setdefault(pattern, set()).add(int(one.value.size(0)))
        for pattern, sizes in found.items():
            if len(sizes) > 1:
                yield Reduction(targets=pattern, counted="rows")


def _unusual(value: int) -> tuple[int, int]:
    """How unusual it is that a value stands for no target."""
    usual = (-100, 255, -1, 0)
    return (usual.index(value), 0) if value in usual else (len(usual) + (value >= 0), abs(value))
