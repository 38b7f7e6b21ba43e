"""The request and reply of the program ``loop_comparison``, which compares the wrapper with a hand-written loop."""

from __future__ import annotations

import msgspec

from advisor.methods.setting import MethodSetting

__all__ = ["LoopComparison", "LoopComparisonReply", "LoopComparisonRequest", "Lost"]


class LoopComparisonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request.

    Attributes:
        workload: File of the model.
        policies: The methods of each comparison.
        block: Name of the class that checkpointing wraps.
        batch: Samples per step.
        device: torch's name of it.
        seconds: Duration of the turns of each comparison.
    """

    workload: str
    policies: tuple[tuple[MethodSetting, ...], ...]
    block: str
    batch: int
    device: str
    seconds: float


class LoopComparison(msgspec.Struct, frozen=True, kw_only=True, tag="beside"):
    """One comparison.

    Attributes:
        ratio: Step time of the wrapper over that of the loop.
        error: Its relative standard error.
        low: Lower quartile of the ratio over the turns.
        high: Upper quartile.
        turns: Number of turns.
        loop_seconds: Median step time of the loop.
        losses: Losses of the wrapper's first steps.
        loop_losses: Losses of the loop's.
        peak_bytes: Most live bytes in a step of the wrapper.
        loop_peak_bytes: Most live bytes in a step of the loop.
    """

    ratio: float
    error: float
    low: float
    high: float
    turns: int
    loop_seconds: float
    losses: list[float]
    loop_losses: list[float]
    peak_bytes: int
    loop_peak_bytes: int


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """A comparison that failed.

    Attributes:
        reason: Why.
    """

    reason: str


class LoopComparisonReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply.

    Attributes:
        found: The result for each of the policies.
    """

    found: list[LoopComparison | Lost]
