"""Where a split sequence begins and ends: around the first and the last block of a run.

Edges lie outside of checkpoint wrappers, which then keep a rank's own tokens only. Between the edges every random
number is the rank's own: it has other tokens than the others and, inside of regions, other heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._block_calls import first_tensor, replaced_first
from advisor.methods.tensor_parallel._collectives import Ranks
from advisor.methods.tensor_parallel._own_masks import OwnDraws
from advisor.methods.tensor_parallel._region_calls import Tokens
from advisor.methods.tensor_parallel._region_functions import Collect, Split
from advisor.training.block_call import BlockCall
from advisor.training.structure import TransparentWrapper, unwrapped

__all__ = ["SequenceEdge", "put_edges"]


class SequenceEdge(TransparentWrapper):
    """A block at which a split sequence begins, ends, or both; names and attributes are those of the block.

    Args:
        block: The block, or what is wrapped around it.
        ranks: Among whom tokens are split.
        draws: Draws own masks from the beginning to the end.
        tokens: What regions know of the split sequence.
        begins: Whether the tokens are split before the block.
        ends: Whether they are gathered after it.
    """

    def __init__(
        self, block: nn.Module, ranks: Ranks, draws: OwnDraws, tokens: Tokens, *, begins: bool, ends: bool
    ) -> None:
        super().__init__(block)  # type: ignore[no-untyped-call]
        self.training = block.training
        self._ranks = ranks
        self._draws = draws
        self._tokens = tokens
        self._begins = begins
        self._ends = ends
        self.be_transparent()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the block on the own tokens."""
        block = self._checkpoint_wrapped_module
        assert isinstance(block, nn.Module)
        if self._begins:
            args, kwargs = self._split(block, args, kwargs)
            if self.training:
                self._draws.start()
        output = block(*args, **kwargs)
        if not self._ends:
            return output
        if self.training:
            self._draws.stop()
        own = first_tensor(output)
        assert own is not None, "the derivation has seen the block return a tensor"
        whole = Collect.apply(own, Tokens.of(own).dim(own), self._ranks)  # type: ignore[no-untyped-call]
        return replaced_first(output, whole)

    def _split(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        read = BlockCall.read(block, args, kwargs)
        if read is None:
            raise MethodRefusedError("sequence=True needs blocks that take a tensor as their first argument")
        hidden, call = read
        own = Split.apply(hidden, Tokens.of(hidden).dim(hidden), self._ranks)  # type: ignore[no-untyped-call]
        self._tokens.count(own)
        return ((own, *call.args), kwargs) if call.place is None else (args, {**kwargs, call.place: own})


def put_edges(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    runs: Sequence[range],
    ranks: Ranks,
    draws: OwnDraws,
    tokens: Tokens,
) -> None:
    """Put the first and the last block of every run, with the wrappers that they have, into an edge.

    Args:
        model: The model, changed in place.
        blocks: Its blocks.
        runs: Numbers of consecutive blocks.
        ranks: Among whom tokens are split.
        draws: Draws own masks.
        tokens: What regions know of the split sequence.
    """
    begins = {id(blocks[run.start]) for run in runs}
    ends = {id(blocks[run.stop - 1]) for run in runs}
    edges: dict[int, SequenceEdge] = {}
    for parent in list(model.modules()):
        if isinstance(parent, ActivationWrapper):
            continue  # An edge goes around the outermost wrapper.
        for name, child in list(parent._modules.items()):
            known = None if child is None else id(unwrapped(child))
            if child is not None and known is not None and known in begins | ends:
                if known not in edges:
                    edges[known] = SequenceEdge(child, ranks, draws, tokens, begins=known in begins, ends=known in ends)
                parent.register_module(name, edges[known])
