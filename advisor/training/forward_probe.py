"""Observe one forward pass: which functions it calls, and whether its blocks form a chain."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from advisor.training.block_call import BlockCall, remembered, returned
from advisor.training.other_uses import OtherUses
from advisor.training.random_state import DRAWN_BETWEEN, drawn_so_far
from advisor.training.saved.graph import graph_nodes

__all__ = ["ChainProbe", "FunctionCounts"]


class FunctionCounts(TorchFunctionMode):
    """While entered, counts calls of torch functions by name, in ``counts``."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


class ChainProbe:
    """Checks whether blocks run in sequence, each only on the output of the one before; by default in one stage.

    Only then can several blocks run as one: the second must be called on the very tensor that the first returned, with
    the same further arguments; if blocks draw random numbers, none may be drawn in between; and nothing else may use a
    block's output, unless it is the last in its stage.

    Stages of a pipeline need less: their blocks are not run as one, so each may be given and return more, and be called
    on what is computed from what the one before it returned.

    Attributes:
        broken: How the blocks are no chain; empty if nothing was seen, or the forward pass ended early.
        unstaged: Why they cannot be in stages either; the same.
        shape_keeping: How often a block returned the shape of its input.
    """

    def __init__(self, blocks: Sequence[nn.Module], stages: Sequence[range] | None = None) -> None:
        self._blocks = list(blocks)
        self._last = {stage[-1] for stage in ([range(len(blocks))] if stages is None and blocks else stages or [])}
        self._uses = OtherUses()
        self._called: list[int] = []
        self._is_returned: Callable[[Any], bool] | None = None
        self._is_rest: Callable[[Any], bool] | None = None
        self._drawn_before: bytes | None = None
        self._drawn_after: bytes | None = None
        self._drawn_between = False
        self._blocks_draw = False
        self._shape: torch.Size | None = None
        self.broken = ""
        self.unstaged = ""
        self._returned: weakref.ref[torch.Tensor] | None = None
        self._made_by: Any = None
        self.shape_keeping = 0

    @contextlib.contextmanager
    def watching(self) -> Generator[None, None, None]:
        """Context for one forward pass."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._forget)
            for number, block in enumerate(self._blocks):
                before, after = functools.partial(self._before, number), functools.partial(self._after, number)
                stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(after).remove)
            stack.enter_context(self._uses)
            yield

    def _forget(self) -> None:
        self._is_returned = self._is_rest = self._returned = self._made_by = None

    @property
    def reason(self) -> str:
        """Why the blocks are no chain; empty if they are."""
        if not self._blocks:
            return "no repeated blocks were found; name their class in the workload: BLOCKS = (BlockClass,)"
        if self.broken:
            return self.broken
        if self._called != list(range(len(self._blocks))):
            return f"the {len(self._blocks)} blocks are not each called once, in their order"
        if self._drawn_between and self._blocks_draw:
            return DRAWN_BETWEEN
        if self._uses.found:
            return f"what a block returns is also used by something else than the next block ({self._uses.found})"
        return ""

    @property
    def staged_reason(self) -> str:
        """Why the blocks cannot be in stages of a pipeline; empty if they can, as far as is seen."""
        if not self._blocks or self.unstaged:
            return self.unstaged or self.reason
        if self._called != list(range(len(self._blocks))):
            return f"the {len(self._blocks)} blocks are not each called once, in their order"
        if not self.broken and self._uses.found:
            return self.reason
        return ""

    def _before(self, number: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return  # Blocks that the user compiles are compiled with their hooks, and cannot be run by others.
        self._uses.ignoring += 1
        name = f"block {number} ({type(block).__name__})"
        call = BlockCall.read(block, args, kwargs)
        if call is None:
            self.broken = self.broken or f"{name} takes no tensor as its first argument"
            self.unstaged = self.unstaged or self.broken
            return
        hidden, rest = call[0], call[1].rest()
        self._drawn_before = drawn_so_far(hidden.device)
        if self._called:
            if self._is_returned is None or not self._is_returned(hidden):
                self.broken = self.broken or f"{name} is not called on what the block before it returned"
            elif self._is_rest is not None and not self._is_rest(rest):
                self.broken = self.broken or f"{name} is called with other arguments than the block before it"
            if not self._is_made_of_returned(hidden):
                said = f"{name} is not called on what is computed from what the block before it returned"
                self.unstaged = self.unstaged or said
            self._drawn_between |= self._drawn_before != self._drawn_after
        self._called.append(number)
        self._shape = hidden.shape
        self._is_rest = remembered(rest)

    def _after(self, number: int, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._uses.ignoring -= 1
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, torch.Tensor):
            self._returned, self._made_by = weakref.ref(first), first.grad_fn
        else:
            said = f"{type(block).__name__} returns a {type(output).__name__}, and no tensor first"
            self.unstaged = self.unstaged or said
        hidden = returned(output)
        if hidden is None:
            self.broken = self.broken or f"{type(block).__name__} returns {type(output).__name__}, not one tensor"
            self._is_returned = None
            return
        self._is_returned = remembered(hidden)
        if number not in self._last:
            self._uses.watch(hidden)
        self.shape_keeping += hidden.shape == self._shape
        self._drawn_after = drawn_so_far(hidden.device)
        self._blocks_draw |= self._drawn_after != self._drawn_before

    def _is_made_of_returned(self, hidden: torch.Tensor) -> bool:
        """Whether a tensor is what the last block returned, or computed from it, as far as a graph can tell."""
        if self._returned is not None and self._returned() is hidden:
            return True
        made_by, self._made_by = self._made_by, None
        return made_by is None or any(node is made_by for node in graph_nodes([hidden]))
