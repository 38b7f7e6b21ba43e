"""Rehearsing a plan in one process: ranks are threads, and together they must compute what the whole block does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._block_calls import Call
from advisor.methods.tensor_parallel._block_plan import Region
from advisor.methods.tensor_parallel._collectives import Ranks, in_threads
from advisor.methods.tensor_parallel._region_calls import Tokens
from advisor.methods.tensor_parallel._replica import replica
from advisor.methods.tensor_parallel._slicing import slice_block, slices_of

__all__ = ["Whole", "rehearse_block", "rehearse_region"]

_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}
_ROUGH = 3e-2
"""Of number formats with fewer digits."""


@dataclass(frozen=True)
class _Outcome:
    output: torch.Tensor
    hidden: torch.Tensor
    parameters: dict[str, torch.Tensor | None]
    others: list[torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


class _ReachedError(Exception):
    """The exit of a region was called: the rest of the block need not run."""


class Whole:
    """What the whole block computes on one call.

    Args:
        block: The block.
        call: The call.
    """

    def __init__(self, block: nn.Module, call: Call) -> None:
        self.block = block
        self.call = call
        self._exits: dict[str, torch.Tensor] = {}
        copied = replica(block)
        for name, module in copied.named_modules():
            module.register_forward_hook(self._keep(name))
        with torch.enable_grad():
            hidden = call.hidden.clone().requires_grad_()
            others: list[torch.Tensor] = []
            output = call.run(copied, hidden, others)
            self.weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output.dtype)
            self.outcome = _outcome(copied, hidden, output, self.weights, others)

    def at(self, name: str) -> torch.Tensor:
        """What a linear layer returned."""
        return self._exits[name]

    def _keep(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                self._exits[name] = output.detach()

        return keep


def rehearse_region(whole: Whole, region: Region, degree: int) -> str:
    """Why the ranks' shares of one region do not add up to the whole; empty if they do."""

    def run(ranks: Ranks) -> torch.Tensor:
        copied = replica(whole.block)
        slice_block(copied, [region], ranks)
        reached: list[torch.Tensor] = []

        def stop(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            reached.append(output)
            raise _ReachedError

        copied.get_submodule(region.exit).register_forward_hook(stop)
        with torch.no_grad():
            try:
                whole.call.run(copied, whole.call.hidden)
            except _ReachedError:
                return reached[0]
        raise ValueError(f"{region.exit} is not called")

    try:
        shares = in_threads(degree, run)
    except Exception as error:  # The user's code, with sizes that do not belong together.
        return _said(error)
    expected = whole.at(region.exit)
    return "" if all(_close(each, expected) for each in shares) else "the ranks' shares do not add up to the whole"


def rehearse_block(whole: Whole, regions: Sequence[Region], degree: int, *, sequence: bool) -> str:
    """Why outputs or gradients of a sliced block are not those of the whole one; empty if they are."""
    call = whole.call
    tokens = Tokens.of(call.hidden) if sequence else None

    def run(ranks: Ranks) -> _Outcome:
        copied = replica(whole.block)
        made = slice_block(copied, regions, ranks, tokens=tokens)
        with torch.enable_grad():
            hidden, weights = call.hidden, whole.weights
            if tokens is not None:
                hidden = ranks.part(hidden, tokens.dim(hidden))
                tokens.count(hidden)
                weights = ranks.part(weights, tokens.dim(weights))
            hidden = hidden.clone().requires_grad_()
            others: list[torch.Tensor] = []
            before = _buffers(copied)
            output = call.run(copied, hidden, others)
            if output.shape != weights.shape:
                raise ValueError(f"a rank's output has shape {list(output.shape)}, not {list(weights.shape)}")
            if not all(each.only_entries_read for each in made):
                raise ValueError("something else than linear layers reads the gathered tokens")
            outcome = _outcome(copied, hidden, output, weights, others)
            with torch.no_grad():
                for name, buffer in copied.named_buffers():
                    buffer.copy_(before[name])
                # Some modules then take another path, past their own linear layers.
                if not _close(call.run(copied, hidden.detach()), output.detach()):
                    raise ValueError("without gradients the sliced block computes something else")
            return outcome

    try:
        outcomes = in_threads(degree, run)
    except Exception as error:
        return _said(error)
    return _difference(whole, regions, outcomes, tokens)


def _difference(whole: Whole, regions: Sequence[Region], outcomes: list[_Outcome], tokens: Tokens | None) -> str:
    """What differs from the whole block."""
    expected = whole.outcome
    for name, wanted, found in (
        ("outputs", expected.output, [each.output for each in outcomes]),
        ("gradients of the hidden states", expected.hidden, [each.hidden for each in outcomes]),
    ):
        if tokens is not None:
            found = [torch.cat(found, tokens.dim(wanted))]
        if not all(_close(each, wanted) for each in found):
            return f"the {name} are not those of the whole block"
    for number, other in enumerate(expected.others):
        if not all(_alike(each.others[number], other) for each in outcomes):
            return "ranks compute parts of the gradient of what the block is given besides hidden states"
    for name, wanted in expected.buffers.items():
        if not all(_close(each.buffers[name], wanted) for each in outcomes):
            return f"the buffer {name} is not that of the whole block"
    slices = {name: part for region in regions for name, part in slices_of(whole.block, region).items()}
    partial = {name for region in regions for name in region.partial}
    known = [each for each in expected.parameters.values() if each is not None]
    floor = 1e-3 * float(torch.stack([each.float().norm() for each in known]).norm()) if known else 0.0
    for name, whole_gradient in expected.parameters.items():
        gradients = [each.parameters[name] for each in outcomes]
        shares = [each for each in gradients if each is not None]
        if whole_gradient is None or len(shares) < len(gradients):
            if whole_gradient is None and not shares:
                continue
            return f"not every rank has a gradient of {name}"
        if name in slices:
            pairs = [(share, slices[name].of(whole_gradient, rank)) for rank, share in enumerate(shares)]
        elif name in partial or tokens is not None:
            pairs = [(torch.stack(shares).sum(0), whole_gradient)]
        else:
            pairs = [(share, whole_gradient) for share in shares]
        if not all(_close(share, wanted, floor) for share, wanted in pairs):
            return f"the gradient of {name} is not that of the whole block"
    return ""


def _outcome(
    block: nn.Module, hidden: torch.Tensor, output: torch.Tensor, weights: torch.Tensor, others: list[torch.Tensor]
) -> _Outcome:
    names = {name: one for name, one in block.named_parameters() if one.requires_grad}
    leaves = [hidden, *names.values(), *others]
    first, *found = torch.autograd.grad(output, leaves, weights, allow_unused=True)
    assert first is not None, "a block's output depends on its input"
    gradients: list[torch.Tensor | None] = list(found)
    parameters = dict(zip(names, gradients, strict=False))
    return _Outcome(output.detach(), first, parameters, gradients[len(names) :], _buffers(block))


def _buffers(block: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a block's buffers."""
    return {name: buffer.detach().clone() for name, buffer in block.named_buffers()}


def _alike(found: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return _close(found, expected)


def _close(found: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> bool:
    if found.shape != expected.shape:
        return False
    tolerance = _TOLERANCES.get(expected.dtype, _ROUGH)
    error = float((found.double() - expected.double()).norm())
    return error <= tolerance * (float(expected.double().norm()) + floor)


def _said(error: Exception) -> str:
    text = str(error).strip().splitlines()
    if isinstance(error, MethodRefusedError):
        return text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
