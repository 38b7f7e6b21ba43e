"""What the caching allocator reserves at any micro-batch: the allocations of two traces, replayed at a third batch."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from advisor.predict.allocator import Replay, replay
from advisor.predict.prediction import Affine, CudaDevice, Reserved
from advisor.predict.trace.envelope import canonical
from advisor.predict.trace.step_trace import StepTrace
from advisor.predict.trace.storage_log import LoggedCall
from advisor.predict.workspace.call import Result, Take, WorkspaceCall, call_between
from advisor.predict.workspace.operators import steps_of

__all__ = ["AllocationLog", "allocation_log", "reserved"]

_MOST_INSIDE = 5
"""Bits for the number of what one call takes inside."""
_WORKSPACE = -(1 << 62)
"""Number of a workspace of cuBLAS; smaller ones are those of others."""

_FIRST_STEP = 0.03
_TOLERANCE = 0.01


class WorkspaceCallAt(NamedTuple):
    """A :class:`LoggedCall` at two micro-batches."""

    begin: int
    births: tuple[int | None, ...]
    first: tuple[int, WorkspaceCall]
    second: tuple[int, WorkspaceCall]


class LogAt(NamedTuple):
    """A log as :func:`advisor.predict.allocator.replay` takes it.

    Attributes:
        events: ``(identity of the storage, bytes)``.
        step: Index of the first event of the step.
        moved: Index of the first event after the model was on the device.
    """

    events: list[tuple[int, int]]
    step: int
    moved: int


class AllocationLog(msgspec.Struct, frozen=True):
    """Allocations and frees from the beginning of everything to the end of a step, against the micro-batch.

    Attributes:
        changes: ``(number of the storage, bytes)``: positive as it grows, negative as it shrinks.
        workspace_calls: Calls that allocate workspace, in order.
        device: On which they do.
        begin: Index of the first change of the step.
        products: Indices of the changes before which cuBLAS allocates a workspace for good, in order.
        workspace_bytes: Of one.
        moved: Index of the first change after the model was on the device.
    """

    changes: list[tuple[int, Affine]]
    workspace_calls: list[WorkspaceCallAt]
    device: CudaDevice
    begin: int
    products: list[int] = []
    workspace_bytes: int = 0
    moved: int = 0

    def at(self, micro_batch: int) -> LogAt:
        """The log at a micro-batch; a storage that grows is freed and allocated anew."""
        log: list[tuple[int, int]] = []
        places: dict[int, int] = {}
        workspaces = list(self.products)
        sizes: dict[int, int] = {}

        def change(number: int, by: int) -> None:
            old = sizes.get(number, 0)
            if old:
                log.append((number, -old))
            if old + by > 0:
                log.append((number, old + by))
            sizes[number] = max(old + by, 0)

        def follow_change(index: int) -> None:
            number, line = self.changes[index]
            change(number, round(line.at(micro_batch)))

        def arrive(index: int) -> None:
            while workspaces and index >= workspaces[0]:
                workspaces.pop(0)
                change(_WORKSPACE - len(workspaces), self.workspace_bytes)
            for mark in (self.moved, self.begin):
                if index >= mark:
                    places.setdefault(mark, len(log))

        def follow(start: int, stop: int) -> None:
            for index in range(start, stop):
                arrive(index)
                follow_change(index)
            arrive(stop)

        position = 0
        for number, one in enumerate(self.workspace_calls):
            follow(position, one.begin)
            position = max((birth for birth in one.births if birth is not None), default=one.begin - 1) + 1
            names: dict[str, int] = {}
            for step in steps_of(call_between(one.first, one.second, micro_batch), self.device):
                if isinstance(step, Result):
                    if (birth := one.births[step.place]) is not None:
                        follow_change(birth)
                    continue
                identity = names.setdefault(step.name, -1 - (number << _MOST_INSIDE) - len(names))
                change(identity, step.nbytes if isinstance(step, Take) else -sizes[identity])
        follow(position, len(self.changes))
        return LogAt(log, places[self.begin], places[self.moved])


def allocation_log(
    first: StepTrace, second: StepTrace, device: CudaDevice, workspace_bytes: int = 0
) -> AllocationLog | None:
    """The log from two traces of a training at two micro-batches; ``None`` if the steps differ in more than sizes.

    Allocations before the step count, as they fragment the memory. If they differ (some are made once per process), the
    log begins with what is live when the step begins. cuBLAS allocates ``workspace_bytes`` in each pass.
    """
    for whole in (True, False):
        (one, mine, begin, moved), (other, theirs, _, _) = (_events(trace, whole=whole) for trace in (first, second))
        changes = _through(first.micro_batch, one, second.micro_batch, other)
        if changes is None or [_place(here) for here in mine] != [_place(there) for there in theirs]:
            continue
        calls = [
            WorkspaceCallAt(here.begin, here.births, (first.micro_batch, here.call), (second.micro_batch, there.call))
            for here, there in zip(mine, theirs, strict=True)
        ]
        products = [max(0, product + begin - first.begin) for product in first.products]
        return AllocationLog(changes, calls, device, begin, products, workspace_bytes, moved)
    return None


def _place(logged: LoggedCall) -> tuple[str, int, tuple[int | None, ...]]:
    return logged.call.operator, logged.begin, logged.births


def _events(trace: StepTrace, *, whole: bool) -> tuple[list[tuple[int, int]], list[LoggedCall], int, int]:
    """Events, the calls among them, where the step begins, and where the model was on the device.

    If not the whole trace, then what lives as the step begins stands for what came before.
    """
    events = canonical(trace)
    if whole:
        return events, trace.workspace_calls, trace.begin, trace.moved
    living: dict[int, int] = {}
    for number, change in events[: trace.begin]:
        living[number] = living.get(number, 0) + change
    before = [(number, size) for number, size in sorted(living.items()) if size]
    by = len(before) - trace.begin
    calls = [
        LoggedCall(one.begin + by, tuple(None if birth is None else birth + by for birth in one.births), one.call)
        for one in trace.workspace_calls
        if one.begin >= trace.begin
    ]
    born = {number for number, _ in events[: trace.moved]}
    return before + events[trace.begin :], calls, len(before), sum(number in born for number, _ in before)


def _through(
    batch: int, events: list[tuple[int, int]], larger: int, others: list[tuple[int, int]]
) -> list[tuple[int, Affine]] | None:
    """A line through each pair of changes, with storages numbered by their first; ``None`` if they are no pairs.

    Which of several storages of one size goes first may differ, as where a set holds them: they change places then.
    """
    if len(events) != len(others):
        return None
    changes = []
    mine: dict[int, int] = {}
    theirs: dict[int, int] = {}
    held: dict[int, int] = {}
    owners: dict[int, int] = {}
    for (number, here), (other, there) in zip(events, others, strict=True):
        position, their_position = mine.setdefault(number, len(mine)), theirs.setdefault(other, len(theirs))
        if (here > 0) is not (there > 0):
            return None
        if position != their_position:
            if here > 0 or held.get(position) != held.get(their_position):
                return None
            twin = owners[position]
            theirs[other], theirs[twin] = position, their_position
            owners[position], owners[their_position] = other, twin
        else:
            owners[position] = other
        held[position] = held.get(position, 0) + there
        changes.append((position, Affine.through((batch, here), (larger, there))))
    return changes


def reserved(log: AllocationLog, *, micro_batch: int, expandable: bool, limit_bytes: int, at_most: int) -> Reserved:
    """Replay a log at the batch asked for and at the largest that fits, which is found to within one percent.

    No batch above ``at_most`` can fit, at which live tensors alone fill the limit; 0 to look for none.
    """

    def play(batch: int, limit: int | None) -> Replay:
        at = log.at(batch)
        return replay(at.events, expandable=expandable, expandable_from=at.moved, limit_bytes=limit, step=at.step)

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
