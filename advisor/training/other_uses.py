"""Detects uses of a block's output other than the next block, even if no graph records them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from advisor.training.saved.uncompiled import uncompiled

__all__ = ["NumberedUses", "OtherUses", "tensors_in"]

_ABOUT_NAMES = """
    __hash__ __len__ data_ptr dim element_size get_device is_complex is_contiguous
    is_floating_point nelement ndimension numel register_hook size storage_offset stride type untyped_storage
"""
_ABOUT = frozenset(_ABOUT_NAMES.split())
"""Functions that do not read a tensor's values. Hooks are set by tools that watch modules."""


class OtherUses(TorchFunctionMode):
    """While entered, looks for torch functions that are called with a watched tensor.

    Code may read such a tensor (to log it, or to decide when to stop) under ``no_grad`` or on a detached copy, where
    the graph of the loss does not show it.

    Attributes:
        found: Name of the first such function; empty if there was none.
        ignoring: How many contexts are open in which uses are ignored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        self.ignoring = 0
        # Weak, because a watched tensor may be the largest there is.
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}

    def watch(self, tensor: torch.Tensor) -> None:
        """Watch a tensor from now on."""
        self._watched[id(tensor)] = weakref.ref(tensor)

    @contextlib.contextmanager
    def looking_away(self) -> Generator[None, None, None]:
        """Context in which uses are ignored."""
        self.ignoring += 1
        try:
            yield
        finally:
            self.ignoring -= 1

    @uncompiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not (torch.compiler.is_compiling() or self.ignoring or self.found):
            name = getattr(func, "__name__", str(func))
            for each in tensors_in((args, kwargs or {})):
                reference = self._watched.get(id(each))
                if reference is not None and reference() is each and _is_use(name, each, out):
                    self.found = name
        return out


class NumberedUses(TorchFunctionMode):
    """While entered, notes which of several blocks' outputs torch functions read.

    Attributes:
        used: Numbers of the blocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._watched: list[torch.Tensor] = []  # kept, so that no other tensor gets its identity
        self._inside = 0

    def watch(self, number: int, tensor: torch.Tensor) -> None:
        """Watch what a block returned."""
        self._numbers[id(tensor)] = number
        self._watched.append(tensor)

    def note(self, given: Any) -> None:
        """Note what a block is given."""
        self.used |= {self._numbers[id(each)] for each in tensors_in(given) if id(each) in self._numbers}

    @contextlib.contextmanager
    def looking_away(self) -> Generator[None, None, None]:
        """Context in which uses are ignored: a block's own."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it."""
        out = func(*args, **(kwargs or {}))
        if not self._inside:
            name = getattr(func, "__name__", str(func))
            for each in tensors_in((args, kwargs or {})):
                number = self._numbers.get(id(each))
                if number is not None and _is_use(name, each, out):
                    self.used.add(number)
        return out


def _is_use(name: str, tensor: torch.Tensor, out: Any) -> bool:
    """Whether a torch function that was called with a tensor, and returned ``out``, has read its values."""
    # A function that returns its own argument did nothing, as a move to the same device.
    return name not in _ABOUT and out is not tensor and (name != "__get__" or isinstance(out, torch.Tensor))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for member in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(member)
