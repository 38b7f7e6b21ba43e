"""The work of one training step: floating-point operations, bytes and launches, as affine functions of the batch."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from advisor.phase import Phase
from advisor.predict.prediction import Affine

__all__ = ["Kind", "StepWork", "Work", "of_passes", "work_through"]


class Kind(enum.Enum):
    """The kinds of operator, each with its own rate."""

    MATRIX = "matrix product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    FUNCTION = "exponential and its like"
    RANDOM = "random numbers"
    OTHER = "other"
    TO_DEVICE = "copy to the device"
    TO_HOST = "copy to the host"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one call of an operator, or of many similar calls.

    Attributes:
        phase: Phase of the step.
        kind: The kind of operator.
        operator: Its name, e.g. ``"addmm"``.
        number_format: Format of the computation, e.g. ``"bfloat16"``; ``"tf32"`` for float32 products that allow it.
        launches: Kernels launched.
        flops: Floating-point operations of matrix products, convolutions and attention; 0 for all others.
        read_bytes: Bytes read.
        written_bytes: Bytes written to memory that was already in use.
        fresh_bytes: Bytes written to newly allocated memory.
    """

    phase: Phase
    kind: Kind
    operator: str
    number_format: str
    launches: float
    flops: float
    read_bytes: float
    written_bytes: float
    fresh_bytes: float

    @property
    def moved_bytes(self) -> float:
        """All bytes that are read or written."""
        return self.read_bytes + self.written_bytes + self.fresh_bytes


_AMOUNTS = ("launches", "flops", "read_bytes", "written_bytes", "fresh_bytes")


class StepWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of one training step at any batch.

    Attributes:
        groups: Calls that are alike at every batch, such as the same layer in every block: their total work at either
            of two batches, in the order of their first call.
        batches: These two. The work is exact there, and at others if every operator's is affine in the batch, which
            holds unless samples are compared with each other.
    """

    groups: tuple[tuple[Work, Work], ...]
    batches: tuple[int, int]

    def work_at(self, batch: float) -> tuple[Work, ...]:
        """The work at a batch, by group."""
        return tuple(self._between(*group, batch) for group in self.groups)

    def _between(self, first: Work, second: Work, batch: float) -> Work:
        one, other = self.batches
        amounts = {
            name: Affine.through((one, getattr(first, name)), (other, getattr(second, name))).at(batch)
            for name in _AMOUNTS
        }
        return msgspec.structs.replace(first, **amounts)


def of_passes(works: Iterable[Work], times: float) -> list[Work]:
    """The work of a step with this many times as many passes: its optimizer still steps once."""
    return [one if one.phase is Phase.OPTIMIZER else _times(one, times) for one in works]


def _times(work: Work, times: float) -> Work:
    return msgspec.structs.replace(work, **{name: times * getattr(work, name) for name in _AMOUNTS})


def work_through(first: tuple[int, Sequence[Work]], second: tuple[int, Sequence[Work]]) -> StepWork:
    """The work of a step from its calls at two batches.

    The n-th call of an operator at one batch corresponds to the n-th at the other. If their numbers differ (with more
    micro-batches, say), all calls of that operator, in that phase and number format, form one group.
    """
    (batch, calls), (larger, others) = sorted((first, second), key=lambda one: one[0])
    assert batch < larger, f"two different batches are needed, got {batch} and {larger}"
    groups: dict[object, tuple[list[Work], list[Work]]] = defaultdict(lambda: ([], []))
    mine, theirs = _by_operator(calls), _by_operator(others)
    for key in mine | theirs:
        one, other = mine.get(key, []), theirs.get(key, [])
        if len(one) != len(other):
            groups[key] = (one, other)
            continue
        for pair in zip(one, other, strict=True):
            for group, call in zip(groups[pair], pair, strict=True):
                group.append(call)
    totals = ((_total(one, one or other), _total(other, one or other)) for one, other in groups.values())
    return StepWork(groups=tuple(totals), batches=(batch, larger))


def _by_operator(calls: Iterable[Work]) -> dict[object, list[Work]]:
    found: dict[object, list[Work]] = defaultdict(list)
    for call in calls:
        found[call.phase, call.kind, call.operator, call.number_format].append(call)
    return found


def _total(calls: Sequence[Work], alike: Sequence[Work]) -> Work:
    """The sum of some calls, of which there may be none, of a group."""
    sums = {name: float(sum(getattr(call, name) for call in calls)) for name in _AMOUNTS}
    return msgspec.structs.replace(alike[0], **sums)
