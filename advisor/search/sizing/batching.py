"""Choose the batch of a trial from the largest feasible micro-batch and a fraction of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from advisor.errors import OptionError
from advisor.search.sizing.memory_model import round_batch
from advisor.text.units import format_bytes

__all__ = ["AFTER_FLUSHES", "AFTER_OUT_OF_MEMORY", "Batch", "choose_batch", "dividing_gpu_counts", "does_not_fit"]

AFTER_OUT_OF_MEMORY = (0.85, 0.5)
"""Shares of a batch to try after it did not fit: predictions are usually off by a few percent, but not always."""

AFTER_FLUSHES = 0.92
"""Share of a batch to try as well when memory was so full that the allocator flushed its cache."""


class Batch(msgspec.Struct, frozen=True):
    """Samples per forward pass, and passes per optimizer step, of each device.

    Attributes:
        micro_batch: Samples per forward pass.
        accumulation_steps: Forward-backward passes per optimizer step.
    """

    micro_batch: int
    accumulation_steps: int = 1


def choose_batch(*, largest: int, fraction: float, global_batch: int | None = None, gpu_count: int = 1) -> Batch | None:
    """Choose the batch of a trial; ``None`` if not even one sample fits.

    Args:
        largest: The largest micro-batch that fits; 0 if none does.
        fraction: Share of it to use, above 0 and up to 1.
        global_batch: Samples per optimizer step over all devices if they are fixed: the micro-batch is then the
            largest divisor of a device's share that is at most ``fraction * largest``, and accumulation makes up the
            rest, so that micro-batch x accumulation steps x devices is the global batch exactly.
        gpu_count: Devices that share the global batch; must divide it (:func:`dividing_gpu_counts`).

    Example:
        >>> choose_batch(largest=40, fraction=0.5)
        Batch(micro_batch=16, accumulation_steps=1)
        >>> choose_batch(largest=10, fraction=1.0, global_batch=24)
        Batch(micro_batch=8, accumulation_steps=3)
        >>> choose_batch(largest=10, fraction=1.0, global_batch=24, gpu_count=2)
        Batch(micro_batch=6, accumulation_steps=2)
    """
    assert 0 < fraction <= 1, f"0 < fraction <= 1 must hold, got {fraction}"
    if largest < 1:
        return None
    wanted = max(1, math.floor(fraction * largest + 1e-9))
    if global_batch is None:
        return Batch(round_batch(wanted))
    share, rest = divmod(global_batch, gpu_count)
    assert rest == 0, f"{gpu_count} devices do not divide a global batch of {global_batch}"
    micro_batch = next(size for size in range(min(wanted, share), 0, -1) if share % size == 0)
    return Batch(micro_batch, share // micro_batch)


def dividing_gpu_counts(
    global_batch: int, gpu_counts: Sequence[int], *, name: str = "--global-batch"
) -> tuple[int, ...]:
    """The numbers of devices among which a global batch can be split evenly.

    Raises:
        OptionError: None of them divides it.
    """
    counts = tuple(count for count in gpu_counts if global_batch % count == 0)
    if not counts:
        allowed = " or ".join(f"{count:,}" for count in gpu_counts)
        below = max(count * (global_batch // count) for count in gpu_counts)
        above = min(count * -(-global_batch // count) for count in gpu_counts)
        nearest = " or ".join(str(batch) for batch in sorted({below, above}) if batch > 0)
        raise OptionError(
            f"{name} must be a multiple of the number of devices ({allowed}), but got {global_batch}. "
            f"The nearest that work: {nearest}; or ask for other --gpus."
        )
    return counts


def does_not_fit(*, need_bytes: int | None, limit_bytes: int, micro_batch: int = 1) -> str:
    """Why a combination was screened, in one line."""
    samples = "one sample" if micro_batch == 1 else f"a micro-batch of {micro_batch}"
    if need_bytes is None:
        return f"{samples} does not fit below {format_bytes(limit_bytes)}"
    return f"{samples} is predicted to need {format_bytes(need_bytes)}; the limit is {format_bytes(limit_bytes)}"
