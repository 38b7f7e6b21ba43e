"""Sees which operators save what must not be changed at all, because their backward pass would blow up a small error.

A gradient that is a product or a bounded function of what was saved becomes noisy by an error, and the noise averages
out. Others do not:

- A logarithm, a quotient or a root divides by what it saved. Of a value near zero that comes back ten times smaller,
  the gradient is ten times larger. The same holds for probabilities near one, near which a binary cross entropy or an
  arc sine divides by the distance.
- A fused attention kernel keeps the logarithm of each row's sum of exponentials and computes the probabilities again
  from queries and keys. An error then stands in an exponent without the sum that would divide it out: with two bits
  per value the gradient is not noisy, but astronomically large. So it is with a logarithm of a sum of exponentials.
- A largest value is looked for by comparing it with all values, and none may be equal to it any more.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from advisor.training.saved.packed_tensors import DelayedTensor
from advisor.training.saved.uncompiled import uncompiled

__all__ = ["DelicateOperatorWatch", "saved_by_known_function"]

_DELICATE_NAMES = (
    # Quotients, roots and logarithms; CopySlices hides which operator wrote to a view in place.
    "Addcdiv Atan2 CopySlices Div Fmod KlDiv Log Log10 Log1P Log2 Logit Remainder SpecialXlog1Py Xlogy "
    "BinaryCrossEntropy Cdist Cumprod Dist Norm Prod Renorm "
    # Functions whose slope is infinite somewhere.
    "Acos Acosh Angle Asin Atanh Digamma Erfinv Igamma Igammac Lgamma Mvlgamma Polygamma SpecialNdtri "
    # Exponentials without what would divide them.
    "CtcLoss CudnnCtcLoss Logcumsumexp Logsumexp MiopenCtcLoss "
    # Comparisons for equality.
    "Amax Amin Aminmax IndexReduce Max Median Min Nanmedian ScatterReduce SegmentReduce"
)
"""Names of such nodes in the graph, without ``Backward`` and the number of their overload."""

_DELICATE = frozenset(_DELICATE_NAMES.split())

_DELICATE_RESULT_NAMES = "Hypot LogSoftmax LogSoftmaxBackwardData Reciprocal Rsqrt Sqrt Std StdMean Tan"
_DELICATE_RESULTS = frozenset(_DELICATE_RESULT_NAMES.split())
"""Names of those of which only the result is delicate: what else they save, and a function that calls them, is not."""

_DELICATE_FAMILIES = (
    "Cholesky",
    "CudnnAttention",
    "EfficientAttention",
    "FlashAttention",
    "Linalg",
    "LuUnpack",
    "ScaledDotProduct",
)
"""How names of others begin."""

_DIVISIONS = frozenset({"__itruediv__", "__truediv__", "div", "div_", "divide", "divide_", "true_divide"})

_KNOWN_MODULES = ("advisor.", "torch.utils.checkpoint")
"""Where autograd functions are defined that bear approximate tensors: ours, and those that recompute from them."""

_NEAREST_FRAMES = 4
"""Callers of a hook to look at: one for the operator, the others for hooks that call it in their turn."""


class DelicateOperatorWatch(TorchFunctionMode):
    """While entered, has what delicate operators save kept exact.

    A function of torch that calls several operators, as ``torch.nn.functional.normalize`` does, is one: everything
    that it saves is kept exact if one of them is delicate.

    Args:
        delaying: Context around one function in which nothing is decided about what it saves, so that the result
            can tell; entered is the list of that, whose members are marked.
    """

    def __init__(self, delaying: Callable[[], contextlib.AbstractContextManager[list[DelayedTensor]]]) -> None:
        super().__init__()
        self._delaying = delaying

    @uncompiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at functions, but not while torch.compile traces, where nothing is saved."""
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        before = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        with self._delaying() as delayed:
            out = func(*args, **(kwargs or {}))
            for each in delayed:
                each.exact = each.tensor is not None and _name(each.tensor.grad_fn) in _DELICATE_RESULTS
            if delayed and _any_delicate(out, before):
                divisor = _divisor(func, args, kwargs or {})
                for each in delayed:
                    each.exact |= divisor is None or each.shares(divisor)
        return out


def saved_by_known_function() -> bool:
    """Whether the hook that calls this was called for an autograd function that bears approximate tensors.

    Nobody knows what the backward pass of any other function does with what it saved: fused kernels of other
    libraries, and regions that ``torch.compile`` made, which are such functions too.
    """
    frame = sys._getframe(1)
    apply = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
    for _ in range(_NEAREST_FRAMES):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code is apply:
            return str(frame.f_locals["cls"].__module__).startswith(_KNOWN_MODULES)
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
    return False


def _any_delicate(out: Any, before: int) -> bool:
    """Whether one of the nodes that were made since ``before`` is delicate; also if none can be found."""
    found = False
    for node in _nodes_since(out, before):
        found = True
        if _is_delicate(node):
            return True
    return not found


def _nodes_since(out: Any, before: int) -> Generator[Any, None, None]:
    """Nodes of the graph of a result with at least a sequence number; they are counted in the order they are made."""
    results = out if isinstance(out, tuple | list) else [out]
    open_nodes = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
    visited: set[Any] = set()
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in visited or not node.next_functions or node._sequence_nr() < before:
            continue
        visited.add(node)
        yield node
        open_nodes += [following for following, _ in node.next_functions]


def _name(node: Any) -> str:
    return "" if node is None else str(node.name()).rpartition("::")[2].partition("Backward")[0]


def _is_delicate(node: Any) -> bool:
    name = _name(node)
    if name in _DELICATE or name.startswith(_DELICATE_FAMILIES):
        return True
    if name != "Pow":
        return False
    exponent = getattr(node, "_saved_exponent", None)  # A polynomial is not delicate.
    return not isinstance(exponent, int | float) or exponent < 1


def _divisor(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """What a single division divides by: its other operand is a factor of the gradient, and may be approximate."""
    if getattr(func, "__name__", "") not in _DIVISIONS:
        return None
    divisor = args[1] if len(args) > 1 else kwargs.get("other")
    return divisor if isinstance(divisor, torch.Tensor) else None
