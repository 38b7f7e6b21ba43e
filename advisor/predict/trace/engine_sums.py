"""Autograd writes gradients in place where it may, with fake tensors too.

Where several operators have a gradient for the same tensor, the backward pass adds each to the sum so far: in its
memory, if nobody else has a reference to it. To a fake tensor, as to any that is no plain tensor, it never does, and
each sum would need memory of its own.

The backward pass of indexing is like that: it puts gradients into a tensor of zeros.

Source: ``accumulate`` and ``can_accumulate_inplace`` in ``torch/csrc/autograd/input_buffer.cpp`` of PyTorch, and
``index_backward`` in ``torch/csrc/autograd/FunctionsManual.cpp``.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from advisor.measure.memory.operator_mode import OperatorMode

__all__ = ["EngineSums"]

_aten: Any = torch.ops.aten
_AROUND_DISPATCH = ("torch._compile", "torch._dynamo.eval_frame")
"""Modules of torch that wrap a mode's dispatch."""
_ENGINE = "_engine_run_backward"
"""The last function of Python before autograd's engine, where that runs in its caller's thread."""


class EngineSums(OperatorMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that lets sums of gradients be made in place; it must be the last one that is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._alone = _uses_of_the_engine()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is _aten.add.Tensor
            and not kwargs
            and _may_be_in_place(args[0], args[1])
            and _is_the_engines(sys._getframe())
            # Nothing else has a reference where there are as few as to a sum that is known to be the engine's alone.
            and _uses(args[0]) == self._alone
        ):
            _aten.add_.Tensor(*args)
            return args[0]
        if func is _aten.index_put.default and _is_of_indexing():
            _aten.index_put_.default(*args, **(kwargs or {}))
            return args[0]
        return func(*args, **(kwargs or {}))


def _is_of_indexing() -> bool:
    node = torch._C._current_autograd_node()
    return node is not None and node.name().startswith("IndexBackward")


def _may_be_in_place(total: Any, gradient: Any) -> bool:
    return (
        type(total) is FakeTensor
        and type(gradient) is FakeTensor
        and not torch.is_grad_enabled()
        and torch._C._current_graph_task_id() != -1
        and total.layout is torch.strided
        and gradient.layout is torch.strided
        and _is_dense(total)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """``is_non_overlapping_and_dense``: in some order of its dimensions it is contiguous."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _is_the_engines(dispatch: types.FrameType) -> bool:
    """Whether autograd's engine asked for it, and not a hook, a method's backward pass or a recomputed forward pass."""
    caller = dispatch.f_back  # none in a thread of the engine's own
    while caller is not None and caller.f_globals.get("__name__") in _AROUND_DISPATCH:
        caller = caller.f_back
    return caller is None or caller.f_code.co_name == _ENGINE


def _uses(tensor: torch.Tensor) -> tuple[int, int]:
    """References to a tensor and to its storage."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


@functools.cache
def _uses_of_the_engine() -> tuple[int, int]:
    """Those of a sum that nobody but the engine knows of."""
    seen: list[tuple[int, int]] = []

    class Probe(OperatorMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _aten.add.Tensor and torch._C._current_graph_task_id() != -1:
                seen.append(_uses(args[0]))
            return func(*args, **(kwargs or {}))

    with _disable_current_modes(), torch.enable_grad(), FakeTensorMode(), Probe():
        leaf = torch.ones(2, requires_grad=True)
        product = leaf * 2
        (product * 3 + product * 4).backward(torch.ones(2))  # type: ignore[no-untyped-call]
    return seen[0]
