"""A derivation as text, to be kept in a policy, and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._block_plan import BlockPlan, Region, Size
from advisor.methods.tensor_parallel._derivation import Derivation
from advisor.methods.tensor_parallel._slicing import slices_of

__all__ = ["read_plan", "written_plan"]


class _Region(msgspec.Struct, frozen=True):
    """A :class:`Region`; for each entry and each rank the outputs as ranges, ``first-last,first-last``."""

    entries: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    exit: str
    inputs: int
    sizes: tuple[tuple[str, str, str], ...]
    partial: tuple[str, ...]
    around: str
    places: tuple[int | str, ...]
    narrow: bool = False


class _Plan(msgspec.Struct, frozen=True):
    """A :class:`BlockPlan`."""

    regions: tuple[_Region, ...]
    whole_share: float
    reasons: tuple[str, ...]
    no_sequence: str


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`Derivation`: distinct plans, and which of them each block has."""

    degree: int
    plans: tuple[_Plan, ...]
    of_block: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    token_dim: int
    dims: int
    whole_share: float
    no_sequence: str


def written_plan(derivation: Derivation) -> str:
    """One line of JSON."""
    distinct = {id(plan): plan for plan in derivation.plans}
    numbers = {key: number for number, key in enumerate(distinct)}
    written = _Written(
        degree=derivation.degree,
        plans=tuple(_written(plan) for plan in distinct.values()),
        of_block=tuple(numbers[id(plan)] for plan in derivation.plans),
        runs=tuple((run.start, run.stop) for run in derivation.runs),
        token_dim=derivation.token_dim,
        dims=derivation.dims,
        whole_share=derivation.whole_share,
        no_sequence=derivation.no_sequence,
    )
    return msgspec.json.encode(written).decode()


def read_plan(text: str | bytes, blocks: Sequence[nn.Module], degree: int) -> Derivation | None:
    """The derivation; ``None`` if it is for another number of ranks.

    Raises:
        MethodRefusedError: It is for another model, or no plan at all.
    """
    try:
        written = msgspec.json.decode(text, type=_Written)
        if written.degree != degree:
            return None
        if len(written.of_block) != len(blocks):
            raise ValueError(f"it has {len(written.of_block)} blocks, and the model {len(blocks)}")
        plans: dict[int, BlockPlan] = {}
        for number, block in zip(written.of_block, blocks, strict=True):
            plan = plans[number] = plans.get(number) or _read(written.plans[number], block, degree)
            _require_fits(plan, block)
    except (AttributeError, IndexError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise MethodRefusedError(
            f"the plan in `settled` must be one for this model, but {error}; remove tensor_parallel from `settled` and "
            "pass a batch as example_batch, and the plan is made anew"
        ) from error
    return Derivation(
        degree=degree,
        plans=tuple(plans[number] for number in written.of_block),
        runs=tuple(range(*run) for run in written.runs),
        token_dim=written.token_dim,
        dims=written.dims,
        whole_share=written.whole_share,
        no_sequence=written.no_sequence,
    )


def _written(plan: BlockPlan) -> _Plan:
    regions = tuple(
        _Region(
            entries=region.entries,
            rows=tuple(tuple(_ranges(rows) for rows in of_entry) for of_entry in region.rows),
            exit=region.exit,
            inputs=sum(len(columns) for columns in region.columns),
            sizes=tuple((size.module, size.holder, size.name) for size in region.sizes),
            partial=region.partial,
            around=region.around,
            places=region.places,
            narrow=region.narrow,
        )
        for region in plan.regions
    )
    return _Plan(regions, plan.whole_share, plan.reasons, plan.no_sequence)


def _read(plan: _Plan, block: nn.Module, degree: int) -> BlockPlan:
    regions = tuple(
        Region(
            entries=region.entries,
            rows=tuple(tuple(_indices(rows) for rows in of_entry) for of_entry in region.rows),
            exit=region.exit,
            columns=tuple(torch.arange(region.inputs).chunk(degree)),
            sizes=tuple(Size(*size) for size in region.sizes),
            partial=region.partial,
            around=region.around,
            places=region.places,
            narrow=region.narrow,
        )
        for region in plan.regions
    )
    return BlockPlan(
        regions,
        {name: part for region in regions for name, part in slices_of(block, region).items()},
        tuple(dict.fromkeys(name for region in regions for name in region.partial)),
        plan.whole_share,
        plan.reasons,
        plan.no_sequence,
    )


def _require_fits(plan: BlockPlan, block: nn.Module) -> None:
    parameters = dict(block.named_parameters())
    for name, part in plan.slices.items():
        if name not in parameters:
            raise ValueError(f"a {type(block).__name__} has no {name}")
        length = parameters[name].size(part.dim)
        if not torch.equal(torch.cat(part.indices).sort().values, torch.arange(length)):
            raise ValueError(f"its {name} has another size, not {length}")


def _ranges(rows: torch.Tensor) -> str:
    """Ascending numbers as ``0-31,64-95``."""
    runs = itertools.groupby(enumerate(rows.tolist()), key=lambda pair: pair[1] - pair[0])
    listed = [[row for _, row in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" for run in listed)


def _indices(ranges: str) -> torch.Tensor:
    pairs = [tuple(map(int, each.split("-"))) for each in ranges.split(",")]
    return torch.cat([torch.arange(first, last + 1) for first, last in pairs])
