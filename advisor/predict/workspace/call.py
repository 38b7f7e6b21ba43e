"""Calls of operators that allocate workspace on CUDA, described so that they are known at every batch.

What they take is seldom affine in the batch: a buffer may grow until it fills the device and then no more. But sizes
and strides of tensors are, so these are carried from two batches to a third.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from advisor.measure.memory.storages import tensors_in

__all__ = [
    "Give",
    "Like",
    "Result",
    "Step",
    "Take",
    "WorkspaceCall",
    "call_between",
    "copies",
    "described",
    "holding",
    "plain",
    "results",
]


class Like(msgspec.Struct, frozen=True):
    """A tensor as a kernel sees it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return self.count * self.dtype.itemsize

    def transposed(self, one: int, other: int) -> Like:
        """With two dimensions exchanged."""
        order = list(range(len(self.shape)))
        order[one], order[other] = order[other], order[one]
        return Like(tuple(self.shape[dim] for dim in order), tuple(self.strides[dim] for dim in order), self.dtype)

    @property
    def contiguous(self) -> bool:
        """As torch has it: strides of dimensions of size 1 do not count."""
        stride = 1
        for size, there in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and there != stride:
                return False
            stride *= size
        return True


class WorkspaceCall(msgspec.Struct, frozen=True):
    """A call of an operator.

    Attributes:
        operator: Its name, with its overload.
        arguments: ``(name, value)`` of those that are given; tensors as :class:`Like`, lists as tuples.
        results: All tensors among its results.
    """

    operator: str
    arguments: tuple[tuple[str, Any], ...]
    results: tuple[Like, ...]

    def given(self, name: str, default: Any = None) -> Any:
        """An argument."""
        return next((value for known, value in self.arguments if known == name), default)


class Take(NamedTuple):
    """A buffer is allocated that is no result."""

    name: str
    nbytes: int


class Give(NamedTuple):
    """It is freed."""

    name: str


class Result(NamedTuple):
    """The result at this place is allocated; one that is in no step is not on the device."""

    place: int


Step = Take | Give | Result


def results(call: WorkspaceCall) -> Iterator[Step]:
    """All results are allocated, in order."""
    return map(Result, range(len(call.results)))


def copies(**tensors: Like) -> dict[str, int]:
    """Buffers for contiguous copies of those that are not."""
    return {name: tensor.nbytes for name, tensor in tensors.items() if not tensor.contiguous}


def holding(buffers: Mapping[str, int], steps: Iterable[Step] = ()) -> Iterator[Step]:
    """Steps, and buffers that are held meanwhile: name -> bytes, freed in reverse order."""
    yield from (Take(name, nbytes) for name, nbytes in buffers.items())
    yield from steps
    yield from (Give(name) for name in reversed(list(buffers)))


def described(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, result: Any) -> WorkspaceCall:
    """The description of a call."""
    names = (argument.name for argument in func._schema.arguments)
    pairs = [*zip(names, args, strict=False), *(kwargs or {}).items()]
    return WorkspaceCall(
        func.__name__, tuple((name, plain(value)) for name, value in pairs), plain(list(tensors_in(result)))
    )


def plain(value: Any) -> Any:
    """A value with tensors as :class:`Like` and lists as tuples."""
    if isinstance(value, torch.Tensor):
        return Like(tuple(value.shape), tuple(value.stride()), value.dtype)
    return tuple(plain(one) for one in value) if isinstance(value, (list, tuple)) else value


def call_between(
    first: tuple[int, WorkspaceCall], second: tuple[int, WorkspaceCall], micro_batch: int
) -> WorkspaceCall:
    """The call at a third micro-batch, from the calls at two."""
    (small, one), (large, other) = first, second
    if micro_batch in (small, large):
        return one if micro_batch == small else other

    def between(here: Any, there: Any) -> Any:
        if isinstance(here, Like):
            return Like(between(here.shape, there.shape), between(here.strides, there.strides), here.dtype)
        if isinstance(here, tuple):
            return tuple(between(*pair) for pair in zip(here, there, strict=True))
        if type(here) is int and type(there) is int:
            return here + round((there - here) * (micro_batch - small) / (large - small))
        return there

    return WorkspaceCall(other.operator, between(one.arguments, other.arguments), between(one.results, other.results))
