"""What is known of how one block is sliced among the ranks of a tensor-parallel group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["BlockPlan", "Region", "Size", "Slice", "common_module"]


@dataclass(frozen=True)
class Slice:
    """How one parameter is spread over the ranks.

    Attributes:
        dim: The dimension that is sliced.
        indices: For each rank, the indices of its part in that dimension, ascending; together all of them, each once.
    """

    dim: int
    indices: tuple[torch.Tensor, ...]

    def of(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's part of a whole tensor, as a copy."""
        if isinstance(whole, FakeTensor):  # It has no values to choose from.
            return whole.narrow(self.dim, 0, len(self.indices[rank])).clone(memory_format=torch.contiguous_format)
        return whole.index_select(self.dim, self.indices[rank].to(whole.device)).contiguous()

    def joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The whole tensor of the ranks' parts."""
        shape = list(parts[0].shape)
        shape[self.dim] = sum(len(each) for each in self.indices)
        whole = parts[0].new_empty(shape)
        for index, part in zip(self.indices, parts, strict=True):
            whole.index_copy_(self.dim, index.to(whole.device), part)
        return whole


@dataclass(frozen=True)
class Size:
    """A whole number that the code of a region reads and that each rank must have divided.

    Attributes:
        module: Name of the module in the block that holds it, or that holds the object that does.
        holder: Attribute of the module with that object (``config``); empty where the module holds the number.
        name: Its attribute.
    """

    module: str
    holder: str
    name: str

    def __str__(self) -> str:
        return ".".join(part for part in (self.module, self.holder, self.name) if part)


@dataclass(frozen=True)
class Region:
    """Linear layers whose outputs are sliced, what is computed from these alone, and the linear layer that ends it.

    Attributes:
        entries: Names of the linear layers that begin it, in the order of their calls.
        rows: For each entry, the outputs of every rank.
        exit: Name of the linear layer that ends it; its inputs are sliced into consecutive parts.
        columns: Inputs of every rank.
        sizes: Numbers in the code to divide.
        partial: Names of whole parameters inside, of which each rank gets a part of the gradient.
        around: Name of the module at whose input a split sequence is gathered; empty: at each entry.
        places: Where that module is given the hidden states: positions and keywords.
        narrow: Whether that module is given only as many features as a rank has of it, and the entries all: its code
            then reads its own part's width from them (``B, T, C = x.shape``).
    """

    entries: tuple[str, ...]
    rows: tuple[tuple[torch.Tensor, ...], ...]
    exit: str
    columns: tuple[torch.Tensor, ...]
    sizes: tuple[Size, ...] = ()
    partial: tuple[str, ...] = ()
    around: str = ""
    places: tuple[int | str, ...] = ()
    narrow: bool = False


@dataclass(frozen=True)
class BlockPlan:
    """How a block is sliced, and what stays whole.

    Attributes:
        regions: What is sliced; empty where nothing can be.
        slices: Name of a sliced parameter in the block -> its slice.
        partial: Names of whole parameters inside of regions.
        whole_share: Share of the block's parameters that stays whole on every rank.
        reasons: Why, one for each part that stays whole although it holds matrices.
        no_sequence: Why a sequence cannot be split in this block; empty where it can.
    """

    regions: tuple[Region, ...]
    slices: dict[str, Slice] = field(default_factory=dict)
    partial: tuple[str, ...] = ()
    whole_share: float = 1.0
    reasons: tuple[str, ...] = ()
    no_sequence: str = ""


def common_module(names: Sequence[str]) -> str:
    """Name of the smallest module around all of these; empty for the block itself."""
    common = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
