"""A wrapper and a loop beside each other: what is asked of the program ``beside_loop``, and what it answers."""

from __future__ import annotations

import msgspec

from advisor.methods.use import MethodUse

__all__ = ["Beside", "BesideAnswer", "BesideRequest", "Lost"]


class BesideRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the program ``benchmarks.papers.beside_loop`` is asked.

    Attributes:
        workload: File of the model.
        policies: The methods of each comparison.
        block: Name of the class that checkpointing wraps.
        batch: Samples per step.
        device: torch's name of it.
        seconds: Of turns, for each.
    """

    workload: str
    policies: tuple[tuple[MethodUse, ...], ...]
    block: str
    batch: int
    device: str
    seconds: float


class Beside(msgspec.Struct, frozen=True, kw_only=True, tag="beside"):
    """One comparison.

    Attributes:
        ratio: Step time of the wrapper over that of the loop.
        error: Relative standard error of that.
        low: Lower quartile of the ratio over the turns.
        high: Upper quartile.
        turns: How many there were.
        loop_seconds: Median step time of the loop.
        losses: Of the wrapper's first steps.
        loop_losses: Of the loop's.
        peak_bytes: Most live bytes of a step of the wrapper.
        loop_peak_bytes: Of the loop.
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
    """A comparison that came to no end.

    Attributes:
        reason: Why.
    """

    reason: str


class BesideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the program answers.

    Attributes:
        found: For each of the policies.
    """

    found: list[Beside | Lost]
