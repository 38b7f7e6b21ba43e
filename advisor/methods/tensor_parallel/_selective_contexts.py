"""Regions inside of selective checkpointing: what its recomputation need not do again, nor communicate.

torch's selective contexts keep what chosen operators return, and count operators: both passes must show them the same
ones. A product that is summed over the ranks would be kept whole beside its sum, and tokens would be gathered again for
products that are kept. Both are therefore hidden from the contexts, and left out where only kept results follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

__all__ = ["hidden", "is_kept"]

_KINDS: tuple[Any, ...] = tuple(
    getattr(checkpoint, name) for name in ("_CachingTorchDispatchMode", "_CachedTorchDispatchMode")
)
_RECOMPUTING: Any = _KINDS[1]
_NOTHING: tuple[Any, ...] = (None, getattr(checkpoint, "_RECOMPUTE", None), getattr(checkpoint, "_CONSUMED", None))


@contextlib.contextmanager
def hidden() -> Generator[None, None, None]:
    """Operators that selective contexts neither see nor count; all other modes do."""
    stack = _get_current_dispatch_mode_stack()
    first = next((number for number, mode in enumerate(stack) if isinstance(mode, _KINDS)), len(stack))
    above = [_pop_mode() for _ in stack[first:]][::-1]
    others = [mode for mode in above if not isinstance(mode, _KINDS)]
    for mode in others:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in others:
            _pop_mode()
        for mode in above:
            _push_mode(mode)


def is_kept(*operators: Any) -> bool:
    """Whether this is a recomputation in which the next call of one of these operators returns what was kept.

    A torch whose contexts do not tell is taken to keep nothing: what could be left out is then done again.
    """
    if _NOTHING[1] is None:
        return False
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, _RECOMPUTING):
            for operator in operators:
                entry = mode.storage.get(operator, {}).get(mode.func_counter[operator])
                if not any(entry is nothing for nothing in _NOTHING):
                    return True
    return False
