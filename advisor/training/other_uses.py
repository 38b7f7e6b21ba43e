"""Sees whether something else than the next block uses what a block returns, also where no graph records it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from advisor.training.saved.uncompiled import uncompiled

__all__ = ["OtherUses"]

_ABOUT_NAMES = """
    __hash__ __len__ data_ptr dim element_size get_device is_complex is_contiguous
    is_floating_point nelement ndimension numel register_hook size storage_offset stride type untyped_storage
"""
_ABOUT = frozenset(_ABOUT_NAMES.split())
"""Functions that ask for something else than a tensor's values. Hooks are set by tools that watch modules."""


class OtherUses(TorchFunctionMode):
    """While entered, looks for functions of torch that are called with one of the watched tensors.

    Whoever reads one for himself (logs it, decides by it when to stop) may do so under ``no_grad`` or on a detached
    copy, so that the graph of the loss tells nothing.

    Attributes:
        found: Name of the first such function; empty if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        self._depth = 0
        # Weak, because a watched tensor may be the largest there is.
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}

    def watch(self, tensor: torch.Tensor) -> None:
        """Look out for a tensor from now on."""
        self._watched[id(tensor)] = weakref.ref(tensor)

    def look_away(self) -> None:
        """What follows is no other use, until :meth:`look_again`; may be nested."""
        self._depth += 1

    def look_again(self) -> None:
        """The end of :meth:`look_away`."""
        self._depth -= 1

    @contextlib.contextmanager
    def looking_away(self) -> Generator[None, None, None]:
        """Around what is no other use."""
        self.look_away()
        try:
            yield
        finally:
            self.look_again()

    @uncompiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments, but not while torch.compile traces."""
        out = func(*args, **(kwargs or {}))
        if not (torch.compiler.is_compiling() or self._depth or self.found):
            name = getattr(func, "__name__", str(func))
            for each in _tensors((args, kwargs or {})):
                reference = self._watched.get(id(each))
                if reference is not None and reference() is each and _is_use(name, each, out):
                    self.found = name
        return out


def _is_use(name: str, tensor: torch.Tensor, out: Any) -> bool:
    # A function that returns its own argument had nothing to do: a move to where it is.
    return name not in _ABOUT and out is not tensor and (name != "__get__" or isinstance(out, torch.Tensor))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for member in value:
            yield from _tensors(member)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
