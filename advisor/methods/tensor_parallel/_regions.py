"""Finding the regions of a block: linear layers whose outputs fall apart into independent shares, up to their exit."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from advisor.methods.tensor_parallel._block_plan import Region, common_module
from advisor.methods.tensor_parallel._dependencies import Dependencies, LinearCall
from advisor.methods.tensor_parallel._linear import sliced_dims
from advisor.training.structure import is_transposed

__all__ = ["Found", "find_regions"]


@dataclass
class Found:
    """Regions, and why others are none.

    Attributes:
        regions: By the order of their exits.
        refused: Name of a linear layer -> why it is in no region.
    """

    regions: list[Region] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def find_regions(dependencies: Dependencies, degree: int) -> Found:
    """Regions that can be shared by ``degree`` ranks, as far as dependencies tell.

    An exit is a linear layer that reads what was made of other linear layers' outputs, but not of the block's input.

    Args:
        dependencies: The trace of a block.
        degree: The number of ranks.
    """
    found = Found()
    taken: set[str] = set()
    for name in sorted(dependencies.twice):
        found.refused[name] = "it is called more than once in a block"
    for number, leaving in enumerate(dependencies.linears):
        before = dependencies.linears[:number]
        on_input, features = dependencies.of(leaving.inputs, before)
        if on_input:
            continue
        pairs = zip(before, features, strict=True)
        entries = [one for one, found_features in pairs if len(found_features)]
        if not entries or any(one.name in taken for one in entries):
            continue
        region = _region(dependencies, entries, leaving, degree)
        if isinstance(region, str):
            for one in (*entries, leaving):
                found.refused.setdefault(one.name, region)
            continue
        taken |= {leaving.name, *(one.name for one in entries)}
        found.regions.append(region)
    for one in dependencies.linears:
        if one.name not in taken:
            found.refused.setdefault(
                one.name, "its output is mixed with what is not sliced before the next linear layer"
            )
    found.refused = {name: reason for name, reason in found.refused.items() if name not in taken}
    return found


def _region(dependencies: Dependencies, entries: list[LinearCall], leaving: LinearCall, degree: int) -> Region | str:
    """The region, or why it cannot be shared by so many ranks."""
    width = leaving.inputs.size(-1)
    if width % degree:
        return f"{leaving.name} has {width} inputs, which {degree} ranks cannot share evenly"
    columns = tuple(torch.arange(width).chunk(degree))
    shares = []
    for rank in range(degree):
        features = slice(rank * width // degree, (rank + 1) * width // degree)
        shares.append(dependencies.of(leaving.inputs, entries, features)[1])
    rows = tuple(tuple(shares[rank][number] for rank in range(degree)) for number in range(len(entries)))
    for one, sets in zip(entries, rows, strict=True):
        outputs = _outputs(one.layer)
        if sum(map(len, sets)) > outputs:
            return (
                f"{degree} ranks need the same outputs of {one.name}: heads, or groups of heads, cannot be shared by "
                "that many"
            )
        if not torch.equal(torch.cat(sets).sort().values, torch.arange(outputs)) or len(set(map(len, sets))) > 1:
            return f"the outputs of {one.name} do not fall apart into {degree} equal shares"
    names = {one.name for one in (*entries, leaving)}
    inside = [name for name in dependencies.parameters_of(leaving.inputs) if name.rpartition(".")[0] not in names]
    around = common_module([one.name for one in entries])
    places = dependencies.only_for(around, entries)
    return Region(
        entries=tuple(one.name for one in entries),
        rows=rows,
        exit=leaving.name,
        columns=columns,
        partial=tuple(inside),
        around=around if places else "",
        places=places,
    )


def _outputs(layer: nn.Module) -> int:
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return weight.size(sliced_dims(is_transposed(layer))[0])
