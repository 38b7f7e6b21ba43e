"""What one forward pass does, seen from outside: which functions it calls, and whether its blocks are a chain."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["ChainWatch", "FunctionCounts"]


class FunctionCounts(TorchFunctionMode):
    """Counts calls of torch functions by name while it is entered.

    Attributes:
        counts: Name -> calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


class ChainWatch:
    """Sees whether blocks run one after the other, each on nothing but what the one before returned.

    Only then can several blocks be made one: the second must be called with the very tensor that the first returned,
    and with the same further arguments.

    Args:
        blocks: The blocks in the order of the model's modules.

    Attributes:
        broken: What was seen that no chain does; empty if nothing was, or the forward pass did not get far.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = list(blocks)
        self._called: list[int] = []
        self._returned: torch.Tensor | None = None
        self._rest: tuple[Any, ...] | None = None
        self.broken = ""

    @contextlib.contextmanager
    def watching(self) -> Generator[None, None, None]:
        """Around one forward pass."""
        handles = []
        for number, block in enumerate(self._blocks):
            before = functools.partial(self._before, number)
            handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(block.register_forward_hook(self._after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._returned = self._rest = None

    @property
    def reason(self) -> str:
        """Why the blocks are no chain; empty if they are."""
        if not self._blocks:
            return "no repeated blocks were found; name their class in the workload: BLOCKS = (BlockClass,)"
        if self.broken:
            return self.broken
        if self._called != list(range(len(self._blocks))):
            return f"the {len(self._blocks)} blocks are not each called once, in their order"
        return ""

    def _before(self, number: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = f"block {number} ({type(block).__name__})"
        if not args or not isinstance(args[0], torch.Tensor):
            self.broken = self.broken or f"{name} takes no tensor as its first argument"
            return
        rest = (*args[1:], *(value for _, value in sorted(kwargs.items())))
        if self._called:
            if args[0] is not self._returned:
                self.broken = self.broken or f"{name} is not called on what the block before it returned"
            elif self._rest is not None and not _same(rest, self._rest):
                self.broken = self.broken or f"{name} is called with other arguments than the block before it"
        self._called.append(number)
        self._rest = rest

    def _after(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._returned = _hidden(output)
        if self._returned is None:
            self.broken = self.broken or f"{type(block).__name__} returns {type(output).__name__}, not one tensor"


def _hidden(output: Any) -> torch.Tensor | None:
    """The tensor that a block returns, alone or as a tuple of one."""
    if isinstance(output, tuple) and len(output) == 1:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def _same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Whether further arguments are the same objects, or equal plain values."""

    def equal(one: Any, other: Any) -> bool:
        if one is other:
            return True
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            return len(one) == len(other) and all(map(equal, one, other))
        return isinstance(one, bool | int | float | str) and type(one) is type(other) and one == other

    return len(left) == len(right) and all(map(equal, left, right))
