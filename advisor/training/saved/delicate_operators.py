"""Detects operators whose saved tensors must stay exact, because their backward pass amplifies small errors.

If a gradient is a product or a bounded function of the saved tensor, an error adds noise that averages out. Otherwise:

- A logarithm, a quotient or a root divides by what it saved: if a value near zero comes back ten times smaller, the
gradient is ten times larger. So do binary cross entropy and arc sine with the distance of a probability to one.
- A fused attention kernel keeps the logarithm of each row's sum of exponentials and recomputes the probabilities from
queries and keys. Their error is in an exponent without the sum that would cancel it, which with two bits per value
makes the gradient astronomically large. So does a logarithm of a sum of exponentials.
- A maximum is found by comparing it with all values, and after an error none may equal it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from advisor.training.saved.graph import graph_nodes
from advisor.training.saved.packed_tensors import DelayedTensor
from advisor.training.saved.uncompiled import uncompiled

__all__ = ["DelicateOperatorWatch", "saved_by_known_function"]

_DELICATE_NAMES = (
    # Quotients, roots and logarithms; CopySlices hides which operator wrote to a view in place.
    "Addcdiv Atan2 CopySlices Div Fmod KlDiv Log Log10 Log1P Log2 Logit Remainder SpecialXlog1Py Xlogy "
    "BinaryCrossEntropy Cdist Cumprod Dist Norm Prod Renorm "
    # Functions whose slope is infinite somewhere.
    "Acos Acosh Angle Asin Atanh Digamma Erfinv Igamma Igammac Lgamma Mvlgamma Polygamma SpecialNdtri "
    # Exponentials without their normalizing sum.
    "CtcLoss CudnnCtcLoss Logcumsumexp Logsumexp MiopenCtcLoss "
    # Comparisons for equality.
    "Amax Amin Aminmax IndexReduce Max Median Min Nanmedian ScatterReduce SegmentReduce"
)
"""Names of such nodes in the graph, without ``Backward`` and the number of their overload."""

_DELICATE = frozenset(_DELICATE_NAMES.split())

_DELICATE_RESULT_NAMES = "Hypot LogSoftmax LogSoftmaxBackwardData Reciprocal Rsqrt Sqrt Std StdMean Tan"
_DELICATE_RESULTS = frozenset(_DELICATE_RESULT_NAMES.split())
"""Names of nodes whose result alone is delicate; their other saved tensors, and functions that call them, are not."""

_DELICATE_FAMILIES = (
    "Cholesky",
    "CudnnAttention",
    "EfficientAttention",
    "FlashAttention",
    "Linalg",
    "LuUnpack",
    "ScaledDotProduct",
)
"""Prefixes of further names."""

_DIVISIONS = frozenset({"__itruediv__", "__truediv__", "div", "div_", "divide", "divide_", "true_divide"})

_KNOWN_MODULES = ("advisor.", "torch.utils.checkpoint")
"""Modules whose autograd functions tolerate approximate tensors: ours, and those that recompute from them."""

_NEAREST_FRAMES = 4
"""Callers of a hook to check: one for the operator, the others for hooks that call it."""


class DelicateOperatorWatch(TorchFunctionMode):
    """While entered, keeps exact what delicate operators save.

    A torch function that calls several operators, such as ``torch.nn.functional.normalize``, counts as one: all that it
    saves is kept exact if one of them is delicate. ``delaying`` makes a context that postpones the decisions on a
    function's saved tensors until its result is known, and yields these tensors, to be marked.
    """

    def __init__(self, delaying: Callable[[], contextlib.AbstractContextManager[list[DelayedTensor]]]) -> None:
        super().__init__()
        self._delaying = delaying

    @uncompiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
    """Whether the calling hook was called for an autograd function that tolerates approximate tensors.

    What others do with saved tensors is unknown: fused kernels of other libraries, and compiled regions.
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
    """Whether a node created since ``before`` is delicate; true also if none can be found."""

    def is_new(node: Any) -> bool:
        return bool(node.next_functions) and node._sequence_nr() >= before  # Numbers follow the order of creation.

    nodes = graph_nodes(out if isinstance(out, tuple | list) else [out], is_new)
    first = next(nodes, None)
    return first is None or any(map(_is_delicate, itertools.chain([first], nodes)))


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
    """The divisor of a single division: the other operand is a factor of the gradient and may be approximate."""
    if getattr(func, "__name__", "") not in _DIVISIONS:
        return None
    divisor = args[1] if len(args) > 1 else kwargs.get("other")
    return divisor if isinstance(divisor, torch.Tensor) else None
