"""The workspace of convolutions on a CPU: found by running each of them once, at two small batches.

A trace sees what operators return. What one takes and gives back before it returns (a convolution copies its
arguments into the layout that its kernel likes) is invisible there, and up to a tenth of the peak of a network of
convolutions. It is affine in the batch and belongs to the operator alone, so that it can be measured apart from the
model.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from advisor.measure.memory.allocation_log import AllocationLog
from advisor.predict.prediction import Affine

__all__ = ["Call", "call_of", "measured_scratch"]

_OPERATORS = {
    "convolution.default": torch.ops.aten.convolution.default,
    "convolution_backward.default": torch.ops.aten.convolution_backward.default,
}

_BATCHES = (2, 4)


class _Like(msgspec.Struct, frozen=True):
    """A tensor's shape without its first dimension, if that is the batch, and what else its kernel depends on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    batched: bool


class Call(msgspec.Struct, frozen=True):
    """A call of an operator, whatever the batch.

    Attributes:
        operator: Its name.
        arguments: Tensors as :class:`_Like`, all others as they are.
    """

    operator: str
    arguments: tuple[Any, ...]


def call_of(operator: str, arguments: tuple[Any, ...]) -> tuple[Call, int] | None:
    """What is to be measured of a call, and its batch; ``None`` for operators that take nothing to speak of."""
    if operator not in _OPERATORS:
        return None
    # The first argument is the input or its gradient; weights and biases have no batch.
    batched = 2 if operator.startswith("convolution_backward") else 1
    batch = arguments[0].size(0)
    like = tuple(
        _Like(
            tuple(one.shape[1:]) if position < batched else tuple(one.shape),
            tuple(one.stride()),
            one.dtype,
            position < batched,
        )
        if isinstance(one, torch.Tensor)
        else tuple(one)
        if isinstance(one, list)
        else one
        for position, one in enumerate(arguments)
    )
    return Call(operator, like), batch


def measured_scratch(calls: Iterable[Call]) -> Mapping[Call, Affine]:
    """The most that each call takes on a CPU beyond what lived before, its results included, against its batch.

    Runs every call twice, on tensors of zeros.
    """
    wanted = list(dict.fromkeys(calls))
    marks: list[tuple[int, int]] = []
    log = AllocationLog()
    with unset_fake_temporarily(), _disable_current_modes(), torch.no_grad():
        prepared = [(call, batch, _arguments(call, batch)) for call in wanted for batch in _BATCHES]
        with log:
            for call, _, arguments in prepared:
                begin = time.time_ns()
                result = _OPERATORS[call.operator](*arguments)
                marks.append((begin, time.time_ns()))
                del result
    peaks = [_peak(log.events, begin, end) for begin, end in marks]
    found = {}
    for number, call in enumerate(wanted):
        (x1, x2), (y1, y2) = _BATCHES, peaks[2 * number : 2 * number + 2]
        slope = max(0.0, (y2 - y1) / (x2 - x1))
        found[call] = Affine(max(0.0, y1 - slope * x1), slope)
    return found


def _arguments(call: Call, batch: int) -> list[Any]:
    def made(like: _Like) -> torch.Tensor:
        shape = (batch, *like.shape) if like.batched else like.shape
        return torch.empty_strided(shape, like.strides, dtype=like.dtype).zero_()

    return [
        list(one) if isinstance(one, tuple) else one
        for one in tree_map_only(_Like, made, list(call.arguments), is_leaf=lambda one: isinstance(one, _Like))
    ]


def _peak(events: list[tuple[int, int]], begin: int, end: int) -> int:
    live = peak = 0
    for moment, change in events:
        if begin <= moment <= end:
            live += change
            peak = max(peak, live)
    return peak
