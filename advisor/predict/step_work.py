"""The work of one training step: floating-point operations, bytes and launches, as affine functions of the batch."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from advisor.phase import Phase

__all__ = ["Amount", "Kind", "StepWork", "Work", "WorkGroup", "work_through"]


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


class Amount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``constant + per_sample * batch``; either may be 0."""

    constant: float
    per_sample: float

    @classmethod
    def through(cls, first: tuple[int, float], second: tuple[int, float]) -> Amount:
        """The line through two points ``(batch, amount)``."""
        (batch, amount), (larger, other) = first, second
        per_sample = (other - amount) / (larger - batch)
        return cls(constant=amount - per_sample * batch, per_sample=per_sample)

    def at(self, batch: float) -> float:
        """The amount at a batch."""
        return self.constant + self.per_sample * batch


class WorkGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls that are alike at every batch, such as the same layer in every block. The amounts are totals.

    Attributes:
        phase: As in :class:`Work`.
        kind: Likewise.
        operator: Likewise.
        number_format: Likewise.
        launches: Kernels started.
        flops: Floating-point operations.
        read_bytes: Bytes read.
        written_bytes: Bytes written into memory that was in use before.
        fresh_bytes: Bytes written into memory taken for the results.
    """

    phase: Phase
    kind: Kind
    operator: str
    number_format: str
    launches: Amount
    flops: Amount
    read_bytes: Amount
    written_bytes: Amount
    fresh_bytes: Amount

    def at(self, batch: float) -> Work:
        """The work at a batch."""
        return Work(
            phase=self.phase,
            kind=self.kind,
            operator=self.operator,
            number_format=self.number_format,
            **{name: getattr(self, name).at(batch) for name in _AMOUNTS},
        )


class StepWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of one training step at any batch.

    Attributes:
        groups: In the order of their first call.
        batches: The two counted batches. The work is exact there, and at others if every operator's is affine in the
            batch, which holds unless samples are compared with each other.
    """

    groups: tuple[WorkGroup, ...]
    batches: tuple[int, int]

    def work_at(self, batch: float) -> tuple[Work, ...]:
        """The work at a batch, by group."""
        return tuple(group.at(batch) for group in self.groups)


def work_through(first: tuple[int, Sequence[Work]], second: tuple[int, Sequence[Work]]) -> StepWork:
    """The work of a step from its calls at two batches.

    The n-th call of an operator at one batch corresponds to the n-th at the other. If their numbers differ (with more
    micro-batches, say), all calls of that operator, in that phase and number format, form one group.

    Args:
        first: A batch and the calls of a step on it.
        second: Another batch and the calls.
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
        for call, its_like in zip(one, other, strict=True):
            pair = groups[(call, its_like)]
            pair[0].append(call)
            pair[1].append(its_like)
    return StepWork(
        groups=tuple(_group((batch, one), (larger, other)) for one, other in groups.values()), batches=(batch, larger)
    )


def _by_operator(calls: Iterable[Work]) -> dict[object, list[Work]]:
    found: dict[object, list[Work]] = {}
    for call in calls:
        found.setdefault((call.phase, call.kind, call.operator, call.number_format), []).append(call)
    return found


def _group(first: tuple[int, list[Work]], second: tuple[int, list[Work]]) -> WorkGroup:
    known = (first[1] or second[1])[0]
    amounts = {
        name: Amount.through((first[0], _total(first[1], name)), (second[0], _total(second[1], name)))
        for name in _AMOUNTS
    }
    return WorkGroup(
        phase=known.phase, kind=known.kind, operator=known.operator, number_format=known.number_format, **amounts
    )


def _total(calls: Iterable[Work], name: str) -> float:
    return float(sum(getattr(call, name) for call in calls))
