"""Sees which calls of attention ran as one fused kernel, whose backward pass needs exactly what it saved.

A fused kernel keeps the logarithm of each row's sum of exponentials and computes the probabilities again from queries
and keys. An error of a query or key then stands in an exponent without the sum that would divide it out: with two
bits per value the gradient is not noisy, but astronomically large.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["FusedAttentionWatch"]

_MOST_VIEWS = 4
_DelayedSaving = contextlib.AbstractContextManager[Callable[[], None]]


class FusedAttentionWatch(TorchFunctionMode):
    """While entered, has what fused attention saves kept exact.

    Args:
        delaying: Context around one operator in which nothing is decided about what it saves, so that the result
            can tell; entered is a function that has it kept exact.
    """

    def __init__(self, delaying: Callable[[], _DelayedSaving]) -> None:
        super().__init__()
        self._delaying = delaying

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at attention only, and not at all while torch.compile traces, where nothing is saved."""
        attention = torch.nn.functional.scaled_dot_product_attention
        if func is not attention or torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        with self._delaying() as keep_exact:
            out = func(*args, **(kwargs or {}))
            if _is_fused(out.grad_fn):
                keep_exact()
        return out


def _is_fused(node: Any) -> bool:
    """Whether a fused kernel made it; attention that is not fused ends in a matrix product, and keeps probabilities.

    A kernel that needs a larger head dimension pads its inputs, and its result is sliced.
    """
    for _ in range(_MOST_VIEWS):
        if node is None:
            return False
        if node.name().startswith("ScaledDotProduct"):
            return True
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return False
