"""From a largest feasible micro-batch and a fraction of it to the batch of a trial."""

from __future__ import annotations

import math

import msgspec

from advisor.problem.units import format_bytes
from advisor.search.memory_model import round_batch

__all__ = ["Batch", "choose_batch", "does_not_fit"]


class Batch(msgspec.Struct, frozen=True):
    """Samples per forward pass, and passes per optimizer step.

    Attributes:
        micro_batch: Samples per forward pass.
        accumulation_steps: Forward-backward passes per optimizer step.
    """

    micro_batch: int
    accumulation_steps: int = 1

    @property
    def label(self) -> str:
        """``"8 x 4"``, or ``"8"`` without accumulation."""
        passes = self.accumulation_steps
        return f"{self.micro_batch}" if passes == 1 else f"{self.micro_batch} x {passes}"


def choose_batch(*, largest: int, fraction: float, global_batch: int | None = None) -> Batch | None:
    """Choose the batch of a trial.

    Args:
        largest: The largest micro-batch that fits; 0 if none does.
        fraction: Share of it to use, above 0 and up to 1.
        global_batch: Samples per optimizer step if they are fixed: the micro-batch is then the largest divisor of it
            that is at most ``fraction * largest``, and accumulation makes up the rest.

    Returns:
        ``None`` if not even one sample fits.

    Example:
        >>> choose_batch(largest=40, fraction=0.5)
        Batch(micro_batch=16, accumulation_steps=1)
        >>> choose_batch(largest=10, fraction=1.0, global_batch=24)
        Batch(micro_batch=8, accumulation_steps=3)
    """
    assert 0 < fraction <= 1, f"0 < fraction <= 1 must hold, got {fraction}"
    if largest < 1:
        return None
    wanted = max(1, math.floor(fraction * largest + 1e-9))
    if global_batch is None:
        return Batch(round_batch(wanted))
    micro_batch = next(size for size in range(min(wanted, global_batch), 0, -1) if global_batch % size == 0)
    return Batch(micro_batch, global_batch // micro_batch)


def does_not_fit(*, need_bytes: int | None, limit_bytes: int, micro_batch: int = 1) -> str:
    """Why a combination was screened, in one line.

    Args:
        need_bytes: Predicted peak at ``micro_batch``, or ``None`` if not even one short run fitted.
        limit_bytes: The memory limit.
        micro_batch: The smallest micro-batch considered.
    """
    samples = "one sample" if micro_batch == 1 else f"a micro-batch of {micro_batch}"
    if need_bytes is None:
        return f"{samples} does not fit below {format_bytes(limit_bytes)}"
    return f"{samples} is predicted to need {format_bytes(need_bytes)}; the limit is {format_bytes(limit_bytes)}"
