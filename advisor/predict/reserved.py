"""What the caching allocator takes at any micro-batch: the allocations of two traces, replayed at a third batch."""

from __future__ import annotations

import msgspec

from advisor.predict.allocator import Replay, replay
from advisor.predict.envelope import canonical
from advisor.predict.prediction import Affine, Reserved
from advisor.predict.step_trace import StepTrace

__all__ = ["AllocationLog", "allocation_log", "reserved"]

_FIRST_STEP = 0.03
_TOLERANCE = 0.01


class AllocationLog(msgspec.Struct, frozen=True):
    """Allocations and frees from the beginning of everything to the end of a step, against the micro-batch.

    Attributes:
        changes: ``(number of the storage, bytes)``: positive as it grows, negative as it shrinks.
    """

    changes: list[tuple[int, Affine]]

    def at(self, micro_batch: int) -> list[tuple[int, int]]:
        """The log at a micro-batch, as :func:`advisor.predict.allocator.replay` takes it.

        A storage that grows is given back and taken anew.
        """
        log: list[tuple[int, int]] = []
        sizes: dict[int, int] = {}
        for number, change in self.changes:
            old = sizes.get(number, 0)
            new = old + round(change.at(micro_batch))
            if old:
                log.append((number, -old))
            if new > 0:
                log.append((number, new))
            sizes[number] = max(new, 0)
        return log


def allocation_log(first: StepTrace, second: StepTrace) -> AllocationLog | None:
    """The log from two traces of the same training at two micro-batches.

    Returns:
        The log; ``None`` where the traces differ in more than sizes, be it in what comes before the step.
    """
    one, other = (canonical(trace) for trace in (first, second))
    if len(one) != len(other) or first.begin != second.begin:
        return None
    span = second.micro_batch - first.micro_batch
    changes = []
    for (number, here), (same, there) in zip(one, other, strict=True):
        if number != same or (here > 0) is not (there > 0):
            return None
        slope = (there - here) / span
        changes.append((number, Affine(here - slope * first.micro_batch, slope)))
    return AllocationLog(changes)


def reserved(
    log: AllocationLog, *, micro_batch: int, expandable: bool, limit_bytes: int, at_most: int, workspace_bytes: int
) -> Reserved:
    """Replay a log at the batch asked for and at the largest that fits, which is found to within one percent.

    Args:
        log: The allocations.
        micro_batch: The batch asked for.
        expandable: Whether ``expandable_segments`` is on.
        limit_bytes: Reserved bytes that may not be passed.
        at_most: No batch above this one can fit: that at which live tensors alone fill the limit; 0 to look for none.
        workspace_bytes: Held all the time.
    """

    def play(batch: int, limit: int | None) -> Replay:
        return replay(log.at(batch), expandable=expandable, limit_bytes=limit, workspace_bytes=workspace_bytes)

    asked = play(micro_batch, limit_bytes)
    largest, above = (0, min(micro_batch, at_most + 1)) if asked.out_of_memory else (micro_batch, at_most + 1)
    found = asked
    probe, step = at_most, max(1, round(_FIRST_STEP * at_most))
    # The answer is close below what live tensors allow: from there down in growing steps, then by halving.
    while above - largest > 1 + _TOLERANCE * largest:
        if not largest < probe < above:
            probe = (largest + above) // 2
        result = play(probe, limit_bytes)
        if result.out_of_memory:
            above = probe
            probe -= step
            step *= 2
        else:
            largest, found, probe = probe, result, 0
    needed = play(micro_batch, None) if asked.out_of_memory else asked
    return Reserved(
        expandable=expandable,
        micro_batch=micro_batch,
        peak_bytes=needed.peak_reserved_bytes,
        largest_batch=largest,
        largest_peak_bytes=found.peak_reserved_bytes if largest else 0,
    )
