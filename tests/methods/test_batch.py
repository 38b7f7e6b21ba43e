"""Batches of every shape are mapped alike, those that nearly everybody has without a walk through a tree."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from advisor.training.batch import tree as batches

ONE, TWO = torch.arange(6).reshape(3, 2), torch.arange(3)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


FLAT = [ONE, (ONE, TWO), [ONE, TWO], {"images": ONE, "labels": TWO}, {"images": ONE, "scale": 2.0, "name": None}]
NESTED = [Pair(ONE, TWO), OrderedDict(a=ONE, b=TWO), {"inputs": {"ids": ONE}, "labels": TWO}, (ONE, [TWO, {"x": ONE}])]


def same(left: Any, right: Any) -> bool:
    (ours, shape), (theirs, other) = pytree.tree_flatten(left), pytree.tree_flatten(right)
    return shape == other and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("batch", [*FLAT, *NESTED])
def test_a_batch_keeps_its_shape_when_it_is_moved_and_cut(batch: Any) -> None:
    moved = batches.move(batch, torch.device("cpu"))
    assert type(moved) is type(batch)
    assert same(moved, batch)
    assert batches.sample_count(batch) == 3
    first, second = batches.split(batch, 2)
    for piece, rows in ((first, slice(0, 2)), (second, slice(2, 3))):
        assert type(piece) is type(batch)
        assert same(piece, pytree.tree_map_only(torch.Tensor, lambda tensor, rows=rows: tensor[rows], batch))


def test_what_nearly_everybody_has_is_no_tree() -> None:
    assert all(batches._flat(batch) is not None for batch in FLAT)
    assert all(batches._flat(batch) is None for batch in NESTED)
