"""The workspace of convolutions on a CPU: found by running each of them once, at two small batches.

A trace sees what operators return. What one allocates and frees before it returns (a convolution copies its arguments
into the layout that its kernel likes) is invisible there, and up to a tenth of the peak of a convolutional network. It
is affine in the batch and depends on the operator alone, so it can be measured apart from the model.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from advisor.measure.memory.allocation_log import AllocationLog
from advisor.predict.prediction import Affine
from advisor.predict.workspace.call import Like, plain

__all__ = ["Call", "call_of", "measured_scratch"]

_OPERATORS = {
    "convolution.default": torch.ops.aten.convolution.default,
    "convolution_backward.default": torch.ops.aten.convolution_backward.default,
}

_BATCHES = (2, 4)
_ANY = -1


class Call(msgspec.Struct, frozen=True):
    """A call of an operator, whatever the batch.

    Attributes:
        operator: Its name.
        arguments: Tensors as :class:`Like`, with ``_ANY`` samples where they have some; lists as tuples.
    """

    operator: str
    arguments: tuple[Any, ...]


def call_of(operator: str, arguments: tuple[Any, ...]) -> tuple[Call, int] | None:
    """What is to be measured of a call, and its batch; ``None`` for operators that need no workspace to speak of."""
    if operator not in _OPERATORS:
        return None
    # Input and its gradient have a batch; weights and biases have none.
    batched = 2 if operator.startswith("convolution_backward") else 1
    samples = [msgspec.structs.replace(one, shape=(_ANY, *one.shape[1:])) for one in map(plain, arguments[:batched])]
    return Call(operator, (*samples, *map(plain, arguments[batched:]))), arguments[0].size(0)


def measured_scratch(calls: Iterable[Call]) -> Mapping[Call, Affine]:
    """The most that each call allocates on a CPU, its results included, against its batch.

    Runs every call twice, on tensors of zeros.
    """
    wanted = list(dict.fromkeys(calls))
    marks: list[tuple[int, int]] = []
    log = AllocationLog()
    with unset_fake_temporarily(), _disable_current_modes(), torch.no_grad():
        prepared = [(call, [_given(one, batch) for one in call.arguments]) for call in wanted for batch in _BATCHES]
        with log:
            for call, arguments in prepared:
                begin = time.time_ns()
                result = _OPERATORS[call.operator](*arguments)
                marks.append((begin, time.time_ns()))
                del result
    peaks = [_peak(log.events, begin, end) for begin, end in marks]
    found = {}
    for call, small, large in zip(wanted, peaks[::2], peaks[1::2], strict=True):
        line = Affine.through((_BATCHES[0], small), (_BATCHES[1], max(small, large)))
        found[call] = Affine(max(0.0, line.fixed), line.per_sample)
    return found


def _given(argument: Any, batch: int) -> Any:
    if isinstance(argument, Like):
        shape = [batch if size == _ANY else size for size in argument.shape]
        return torch.empty_strided(shape, argument.strides, dtype=argument.dtype).zero_()
    return list(argument) if isinstance(argument, tuple) else argument


def _peak(events: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    inside = (change for moment, change in events if begin <= moment <= end)
    return max(itertools.accumulate(inside, initial=0))
