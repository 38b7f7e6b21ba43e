"""Running the blocks of a model as a plan says: nested regions that the backward pass runs again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from advisor.methods.recompute.block_rules import require_blocks
from advisor.methods.recompute.plan import Plan, blocks_in, shifted
from advisor.training.block_call import BlockCall
from advisor.training.chain import Chain, Segment
from advisor.training.random_state import RandomSource, default_generators
from advisor.training.recompute import region_contexts, stop_key_value_cache
from advisor.training.structure import stages_of
from advisor.training.training import Training

__all__ = ["chain_of", "run_by_plan", "segments_of"]


def run_by_plan(training: Training, plan: Callable[[int], Plan], least: int) -> None:
    """Change a training's model in place so that the blocks of each of its stages run by a plan for their number.

    Raises:
        MethodRefusedError: The model has fewer than ``least`` blocks.
    """
    chain, blocks = chain_of(training, least)
    stages = stages_of(training.model, blocks)
    whole = tuple(item for stage in stages for item in shifted(plan(len(stage)), stage.start))
    chain.segments = segments_of(whole, blocks, default_generators(training.model))


def chain_of(training: Training, least: int) -> tuple[Chain, list[nn.Module]]:
    """The chain that a training's blocks now form, and the blocks.

    Raises:
        MethodRefusedError: There are fewer than ``least``.
    """
    blocks = require_blocks(training, least)
    stop_key_value_cache(training)
    return Chain(training, blocks), blocks


def segments_of(plan: Plan, blocks: Sequence[nn.Module], generators: Sequence[RandomSource]) -> tuple[Segment, ...]:
    """The segments of a chain that runs by a plan for all blocks. Those that keep everything are in none.

    The blocks are those of the model themselves, whose buffers are guarded; ``generators`` all that they may draw from.
    """
    return tuple(
        Segment(blocks_in(item)[0], blocks_in(item)[-1] + 1, _Region(item, blocks, generators))
        for item in plan
        if not isinstance(item, int)
    )


class _Region:
    """Runs consecutive blocks of which only the input is kept: a segment of a chain."""

    def __init__(self, plan: Plan, blocks: Sequence[nn.Module], generators: Sequence[RandomSource]) -> None:
        numbers = blocks_in(plan)
        self._first = numbers[0]
        self._items = [item if isinstance(item, int) else _Region(item, blocks, generators) for item in plan]
        self._contexts = region_contexts([blocks[number] for number in numbers], generators)

    def __call__(self, blocks: Sequence[nn.Module], hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
        return self._run(blocks, self._first, hidden, call)

    def _run(self, blocks: Sequence[nn.Module], offset: int, hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
        def through(hidden: torch.Tensor) -> torch.Tensor:
            for item in self._items:
                if isinstance(item, int):
                    hidden = call.run(blocks[item - offset], hidden)
                else:
                    hidden = item._run(blocks, offset, hidden, call)
            return hidden

        # The hidden state is an argument, not in a closure: torch then keeps it only as long as needed, and inside
        # another region not at all. The contexts keep the random states: torch would keep a copy per region.
        output: torch.Tensor = checkpoint(
            through, hidden, use_reentrant=False, preserve_rng_state=False, context_fn=self._contexts
        )
        return output
