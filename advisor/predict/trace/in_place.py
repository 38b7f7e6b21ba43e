"""Operators that change nothing but the values of a tensor need not run on fake tensors, which have none.

Most operators of an optimizer's step are of this kind, and each would take torch as long as one with a result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["changes_only_values"]


def changes_only_values(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether a call writes to its first argument (or to every tensor of that list) and does nothing else.

    Not if torch keeps the values although the tensor is fake, as of an optimizer's count of its steps.
    """
    if not args or not _writes_to_first(func):
        return False
    written = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    return all(type(one) is FakeTensor and one.constant is None and one.layout is torch.strided for one in written)


@functools.cache
def _writes_to_first(func: Callable[..., Any]) -> bool:
    """Whether an operator is the in-place form of one, by its schema; no other form of memory may change."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or "resize" in func.__name__:
        return False
    schema = func._schema
    if torch.Tag.inplace_view in func.tags or not schema.arguments:
        return False
    first, *others = (argument.alias_info for argument in schema.arguments)
    if first is None or not first.is_write or any(other is not None for other in others):
        return False
    if isinstance(schema.arguments[0].type, torch.ListType):
        return not schema.returns
    return len(schema.returns) == 1 and schema.returns[0].alias_info is not None
