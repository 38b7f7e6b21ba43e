"""What lives at every moment of one measured step, from the first change to the last."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.training.training import Phase

__all__ = ["MemoryTimeline", "note_span", "timeline_of"]


class MemoryTimeline(msgspec.Struct, frozen=True):
    """The moments of a step, in order: the beginning of every phase, and every change.

    Attributes:
        live: Bytes that live then.
        phases: The phase of each; ``Phase.IDLE`` is the time outside of the others.
        changes: 1 for bytes allocated, -1 for bytes freed, 0 where a phase begins.
    """

    live: list[int]
    phases: list[Phase]
    changes: list[int]

    def peaks(self) -> dict[Phase, int]:
        """Phase -> most live bytes, for the phases that occurred."""
        peaks: dict[Phase, int] = {}
        for live, phase in zip(self.live, self.phases, strict=True):
            peaks[phase] = max(peaks.get(phase, 0), live)
        return peaks


def note_span(spans: list[tuple[int, int]], now: int, *, begins: bool) -> None:
    """Add a span that begins now, or end the last one."""
    if begins:
        spans.append((now, now))
    else:
        spans[-1] = (spans[-1][0], now)


def timeline_of(
    before: int,
    events: Sequence[tuple[int, int]],
    phases: Sequence[tuple[int, Phase]],
    in_chunks: Sequence[tuple[int, int]] = (),
) -> MemoryTimeline:
    """Follow a step that begins with ``before`` live bytes; everything in order of time.

    Args:
        before: Live bytes.
        events: ``(time, bytes)`` of what was allocated (positive) and freed (negative).
        phases: ``(time, phase that begins)``.
        in_chunks: ``(begin, end)`` of work in any number of chunks: what is allocated meanwhile counts as one tensor.
    """
    events = _as_one(events, in_chunks)
    moments = [(before, Phase.IDLE, 0)]
    live, phase, coming = before, Phase.IDLE, 0
    for moment, change in events:
        while coming < len(phases) and phases[coming][0] <= moment:
            phase = phases[coming][1]
            moments.append((live, phase, 0))
            coming += 1
        live += change
        moments.append((live, phase, 1 if change > 0 else -1))
    moments += [(live, phase, 0) for _, phase in phases[coming:]]
    return MemoryTimeline(*map(list, zip(*moments, strict=True)))


def _as_one(events: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The events, with each span as one allocation of the most that it added, and one for what it freed of that."""
    result: list[tuple[int, int]] = []
    position = 0
    for begin, end in spans:
        while position < len(events) and events[position][0] < begin:
            result.append(events[position])
            position += 1
        first, live, most = position, 0, 0
        while position < len(events) and events[position][0] < end:
            live += events[position][1]
            most = max(most, live)
            position += 1
        if most:
            result.append((events[first][0], most))
        if live != most:
            result.append((events[position - 1][0], live - most))
    return result + list(events[position:])
