"""How the blocks of a model are sliced among so many ranks, found from what they compute on one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._block_calls import Call, Calls, calls_of, structure_keys, undisturbed
from advisor.methods.tensor_parallel._block_plan import BlockPlan, Region, Size
from advisor.methods.tensor_parallel._dependencies import Dependencies
from advisor.methods.tensor_parallel._divided_sizes import candidate_sizes, sizes_read
from advisor.methods.tensor_parallel._linear import is_linear
from advisor.methods.tensor_parallel._regions import find_regions
from advisor.methods.tensor_parallel._rehearsal import Whole, rehearse_block, rehearse_region
from advisor.methods.tensor_parallel._replica import precise
from advisor.methods.tensor_parallel._slicing import slices_of

__all__ = ["Derivation", "derive"]


@dataclasses.dataclass(frozen=True)
class Derivation:
    """Plans for all blocks.

    Attributes:
        degree: The number of ranks.
        plans: For each block.
        runs: Numbers of consecutive blocks between which a sequence may stay split.
        token_dim: Dimension of the tokens in what blocks are given.
        dims: How many dimensions that has.
        whole_share: Share of the blocks' parameters that stays whole.
        no_sequence: Why a sequence cannot be split; empty where it can.
    """

    degree: int
    plans: tuple[BlockPlan, ...]
    runs: tuple[range, ...]
    token_dim: int
    dims: int
    whole_share: float
    no_sequence: str

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why parts of the blocks stay whole, each once."""
        return tuple(dict.fromkeys(reason for plan in self.plans for reason in plan.reasons))

    @property
    def whole_words(self) -> str:
        """Which share of the blocks stays whole, and why; empty if nothing does that holds matrices."""
        if not self.reasons:
            return ""
        return f"{self.whole_share:.0%} of the blocks' parameters stay whole on every device: {'; '.join(self.reasons)}"

    def require(self, *, sequence: bool) -> None:
        """Refuse what cannot be done.

        Raises:
            MethodRefusedError: No block can be sliced, or the sequence cannot be split.
        """
        if not any(plan.regions for plan in self.plans):
            said = "; ".join(self.reasons) or "the blocks hold no linear layers"
            raise MethodRefusedError(
                f"tensor parallelism on {self.degree} ranks slices linear layers of the blocks, but 100 % of the "
                f"blocks' parameters would stay whole: {said}"
            )
        if sequence and self.no_sequence:
            raise MethodRefusedError(
                f"sequence=True splits the tokens between the regions of each block, but here it cannot: "
                f"{self.no_sequence}; use sequence=False"
            )


def derive(model: nn.Module, blocks: Sequence[nn.Module], run: Callable[[nn.Module], Any], degree: int) -> Derivation:
    """Plans for the blocks of a model, which is left as it was.

    Args:
        model: The whole model, on the CPU.
        blocks: Its blocks in their order.
        run: Runs the model on a small batch and returns its loss, or its outputs.
        degree: The number of ranks, at least 2.
    """
    calls = calls_of(model, blocks, run)
    tied = _tied(model)
    plans: list[BlockPlan] = []
    known: dict[Hashable, BlockPlan] = {}
    with undisturbed(model):
        for block, call, structure in zip(blocks, calls.of_block, structure_keys(blocks), strict=True):
            if call is None:
                said = "a block is not called on a tensor in a forward pass, or returns none"
                plans.append(BlockPlan((), reasons=(said,)))
                continue
            key = structure, _call_key(call), tuple(sorted(_names_of(block, tied)))
            if key not in known:
                plan = _plan(*precise(block, call), degree, _names_of(block, tied))
                known[key] = _unless_used(plan, block, calls)
            plans.append(known[key])
    counts = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    whole = sum(plan.whole_share * count for plan, count in zip(plans, counts, strict=True))
    first = next((call for call in calls.of_block if call is not None), None)
    dims = 0 if first is None else first.hidden.dim()
    return Derivation(
        degree,
        tuple(plans),
        tuple(calls.runs),
        1 if dims > 2 else 0,
        dims,
        whole / max(1, sum(counts)),
        _no_sequence(calls, plans),
    )


def _no_sequence(calls: Calls, plans: Sequence[BlockPlan]) -> str:
    if calls.used_elsewhere:
        return "something else than the next block uses what a block returns or computes"
    return next((plan.no_sequence for plan in plans if plan.no_sequence), "")


def _plan(block: nn.Module, call: Call, degree: int, tied: set[str]) -> BlockPlan:
    """The plan of one block."""
    whole = Whole(block, call)
    dependencies = Dependencies(block, call)
    found = find_regions(dependencies, degree)
    sizes = sizes_read(block, call, degree) if found.regions else []
    regions: list[Region] = []
    refused = dict(found.refused)
    for region in found.regions:
        names = (*region.entries, region.exit)
        if tied.intersection(names):
            refused |= dict.fromkeys(names, "its weight is tied to another module's")
            continue
        first_reason = ""
        for tried in _divided(region, sizes):
            reason = rehearse_region(whole, tried, degree)
            first_reason = first_reason or reason
            if not reason:
                regions.append(tried)
                break
        else:
            text = f"its code holds sizes that cannot be divided by {degree} ({first_reason})"
            refused |= dict.fromkeys(names, text)
    reason = rehearse_block(whole, regions, degree, sequence=False) if regions else ""
    if reason:
        kept = [region for region in regions if not rehearse_block(whole, [region], degree, sequence=False)]
        kept = [] if rehearse_block(whole, kept, degree, sequence=False) else kept
        refused |= {name: reason for region in regions if region not in kept for name in (*region.entries, region.exit)}
        regions = kept
    regions, no_sequence = _with_sequence(whole, regions, degree)
    slices = {name: part for region in regions for name, part in slices_of(block, region).items()}
    parameters = dict(block.named_parameters())
    sliced = sum(parameters[name].numel() for name in slices)
    total = sum(parameter.numel() for parameter in parameters.values())
    return BlockPlan(
        tuple(regions),
        slices,
        tuple(dict.fromkeys(name for region in regions for name in region.partial)),
        1.0 - sliced / max(1, total),
        _reasons(block, refused, set(slices)),
        no_sequence,
    )


def _divided(region: Region, sizes: list[Size]) -> Iterator[Region]:
    """The region with what its code may need divided: numbers that it holds, and the width of what it is given."""
    for narrow in (False, True) if region.around else (False,):
        for chosen in candidate_sizes(region, sizes):
            yield dataclasses.replace(region, sizes=chosen, narrow=narrow)


def _unless_used(plan: BlockPlan, block: nn.Module, calls: Calls) -> BlockPlan:
    """No plan where the loss uses what a region would compute a share of, or reads what it would have a share of."""
    entries = {name for region in plan.regions for name in region.entries}
    names = sorted((calls.used_inside & entries) | (calls.read & {*plan.slices, *plan.partial}))
    if not names:
        return plan
    named = f"{type(block).__name__}'s {', '.join(names)}"
    reason = f"{named}: the loss reads them, or what they compute, besides what the block returns"
    return BlockPlan((), reasons=(*plan.reasons, reason), no_sequence="no linear layer of a block is sliced")


def _with_sequence(whole: Whole, regions: list[Region], degree: int) -> tuple[list[Region], str]:
    """The regions as they gather a split sequence, and why they cannot (empty: they can)."""
    if not regions:
        return regions, "no linear layer of a block is sliced"
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in whole.block.modules()):
        return regions, "batch normalization takes the mean over all tokens"
    first = ""
    at_entries = [each if each.narrow else dataclasses.replace(each, around="", places=()) for each in regions]
    for tried in (regions, at_entries):
        reason = rehearse_block(whole, tried, degree, sequence=True)
        if not reason:
            return tried, ""
        first = first or reason.removesuffix("; use sequence=False")
    whole_tokens = f"outside of what can be gathered the code of {type(whole.block).__name__} needs all tokens"
    return regions, f"{whole_tokens} ({first})" if "tokens and" not in first else first


def _reasons(block: nn.Module, refused: dict[str, str], sliced: set[str]) -> tuple[str, ...]:
    """Why matrices stay whole: one line for those of the same reason."""
    kind = type(block).__name__
    by_reason: dict[str, list[str]] = {}
    for name, reason in refused.items():
        by_reason.setdefault(reason, []).append(name)
    for name, module in block.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            full = f"{name}.{key}" if name else key
            if full not in sliced and name not in refused and parameter.dim() > 1:
                by_reason.setdefault(_why_no_linear(module, parameter), []).append(full)
    return tuple(f"{kind}'s {', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _why_no_linear(module: nn.Module, parameter: torch.Tensor) -> str:
    if isinstance(module, nn.MultiheadAttention):
        return "nn.MultiheadAttention keeps its projections as bare parameters"
    if isinstance(module, nn.modules.conv._ConvNd):
        return "a convolution is not sliced"
    if isinstance(module, nn.Embedding):
        return "an embedding inside of a block is not sliced"
    if is_linear(module):
        return "it was not called"
    if isinstance(module, nn.Linear):
        return f"a {type(module).__name__} is no plain nn.Linear, or something hangs on it"
    if parameter.dim() > 2:
        return f"{parameter.dim()}-dimensional parameters (experts in one, for example) are no linear layers"
    return "a bare parameter is no linear layer"


def _tied(model: nn.Module) -> set[int]:
    """Parameters that several modules hold."""
    seen: set[int] = set()
    tied: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (tied if id(parameter) in seen else seen).add(id(parameter))
    return tied


def _names_of(block: nn.Module, tied: set[int]) -> set[str]:
    """Names of the modules that hold a tied parameter."""
    return {
        name
        for name, module in block.named_modules()
        if any(id(parameter) in tied for parameter in module._parameters.values())
    }


def _call_key(call: Call) -> Hashable:
    leaves, structure = torch.utils._pytree.tree_flatten((call.place, call.args, call.kwargs))
    return (
        call.hidden.shape,
        str(structure),
        tuple((tuple(each.shape), each.dtype) if isinstance(each, torch.Tensor) else str(each)[:80] for each in leaves),
    )
