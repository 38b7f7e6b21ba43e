"""Slicing one block in place, as its plan says."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from advisor.methods.tensor_parallel._block_plan import Region, Size, Slice
from advisor.methods.tensor_parallel._collectives import Ranks
from advisor.methods.tensor_parallel._linear import sliced_dims
from advisor.methods.tensor_parallel._own_masks import OwnDraws
from advisor.methods.tensor_parallel._region_calls import GatherAround, RegionCalls, Tokens
from advisor.methods.tensor_parallel._sliced_linear import EntryLinear, ExitLinear
from advisor.training.structure import is_transposed

__all__ = ["divide", "slice_block", "slices_of"]


def slice_block(
    block: nn.Module,
    regions: Sequence[Region],
    ranks: Ranks,
    *,
    tokens: Tokens | None = None,
    draws: OwnDraws | None = None,
) -> list[RegionCalls]:
    """Put a rank's part in the place of the linear layers of each region.

    Args:
        block: The block, changed in place.
        regions: What to slice.
        ranks: Among whom.
        tokens: How the sequence is split outside of regions; ``None`` where it is not.
        draws: Draws own masks inside of regions; ``None`` where something outside does.

    Returns:
        What the modules of each region share.
    """
    made = []
    for region in regions:
        around = region.around if tokens is not None or region.narrow else ""
        narrow = ranks.size if region.narrow else 1
        calls = RegionCalls(ranks, len(region.entries), tokens, around=bool(around), narrow=narrow, draws=draws)
        slices = slices_of(block, region)
        for names, kind in ((region.entries, EntryLinear), ((region.exit,), ExitLinear)):
            for name in names:
                layer = block.get_submodule(name)
                own = kind(layer, slices[f"{name}.weight"], slices.get(f"{name}.bias"), ranks.rank, calls)
                block.set_submodule(name, own)
        if around:
            hook = GatherAround(calls, region.places)
            block.get_submodule(around).register_forward_pre_hook(hook, with_kwargs=True)
        made.append(calls)
    divide(block, [size for region in regions for size in region.sizes], ranks.size)
    return made


def slices_of(block: nn.Module, region: Region) -> dict[str, Slice]:
    """Name of a parameter of a whole block -> how the region slices it."""
    found: dict[str, Slice] = {}
    for name, rows in zip(region.entries, region.rows, strict=True):
        layer = block.get_submodule(name)
        found[f"{name}.weight"] = Slice(sliced_dims(is_transposed(layer))[0], rows)
        if layer.bias is not None:
            found[f"{name}.bias"] = Slice(0, rows)
    leaving = block.get_submodule(region.exit)
    found[f"{region.exit}.weight"] = Slice(sliced_dims(is_transposed(leaving))[1], region.columns)
    return found


def divide(block: nn.Module, sizes: Sequence[Size], degree: int) -> None:
    """Divide numbers that modules hold; those that an object holds for them, in a copy of the modules' own."""
    copies: dict[tuple[str, str], Any] = {}
    for size in dict.fromkeys(sizes):
        module = block.get_submodule(size.module)
        holder: Any = module
        if size.holder:
            known = (size.module, size.holder)
            if known not in copies:
                copies[known] = copy.copy(getattr(module, size.holder))
                setattr(module, size.holder, copies[known])
            holder = copies[known]
        setattr(holder, size.name, getattr(holder, size.name) // degree)
