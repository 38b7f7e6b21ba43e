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

    What comes before the step counts, as it leaves the memory in pieces. Where it differs (some things are made once in
    a process) the log begins with what lives when the step does.

    Returns:
        The log; ``None`` where the steps differ in more than sizes.
    """
    for events_of in (canonical, _from_the_step_on):
        changes = _through(first.micro_batch, events_of(first), second.micro_batch, events_of(second))
        if changes is not None:
            return AllocationLog(changes)
    return None


def _from_the_step_on(trace: StepTrace) -> list[tuple[int, int]]:
    events = canonical(trace)
    living: dict[int, int] = {}
    for number, change in events[: trace.begin]:
        living[number] = living.get(number, 0) + change
    return [(number, size) for number, size in sorted(living.items()) if size] + events[trace.begin :]


def _through(
    batch: int, events: list[tuple[int, int]], larger: int, others: list[tuple[int, int]]
) -> list[tuple[int, Affine]] | None:
    """A line through each pair of changes, with storages numbered by their first; ``None`` if they are no pairs."""
    if len(events) != len(others):
        return None
    changes = []
    mine: dict[int, int] = {}
    theirs: dict[int, int] = {}
    for (number, here), (other, there) in zip(events, others, strict=True):
        position = mine.setdefault(number, len(mine))
        if position != theirs.setdefault(other, len(theirs)) or (here > 0) is not (there > 0):
            return None
        slope = (there - here) / (larger - batch)
        changes.append((position, Affine(here - slope * batch, slope)))
    return changes


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
        allocated_bytes=needed.peak_allocated_bytes,
        largest_batch=largest,
        largest_peak_bytes=found.peak_reserved_bytes if largest else 0,
    )
