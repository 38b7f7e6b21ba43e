"""From two steps at two batches, traced or measured, to the memory at every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy
from numpy.typing import NDArray

from advisor.measure.memory.timeline import MemoryTimeline
from advisor.predict.prediction import Affine, Category, Manner, MemoryPrediction, Moment
from advisor.predict.trace.step_trace import StepTrace
from advisor.training.training import Phase

__all__ = [
    "LiveStep",
    "are_alike",
    "canonical",
    "live_by_category",
    "predict_aligned",
    "predict_between",
    "predict_fitted",
]

_Bytes = NDArray[numpy.float64]

_T = TypeVar("_T")

_LARGEST_BATCH = 2.0**24
"""Beyond any real batch."""


class LiveStep(msgspec.Struct, frozen=True):
    """Live bytes after every event of the step, by category: ``live[category][event]``."""

    live: dict[Category, _Bytes]
    phases: list[str]
    operators: list[str]

    def total(self) -> _Bytes:
        """Live bytes after every event, of all categories."""
        total: _Bytes = numpy.sum(list(self.live.values()), axis=0)
        return total


def canonical(trace: StepTrace) -> list[tuple[int, int]]:
    """The events, with each run of frees in the order of birth.

    Which of several tensors dies first when a dictionary is cleared may differ between two runs, and does not matter:
    nothing is allocated meanwhile.
    """
    cuts = {trace.begin, *(index for index, _ in trace.marks)}
    events = list(trace.events)
    start = 0
    while start < len(events):
        stop = start + 1
        if events[start][1] < 0:
            while stop < len(events) and events[stop][1] < 0 and stop not in cuts:
                stop += 1
            events[start:stop] = sorted(events[start:stop])
        start = stop
    return events


def are_alike(first: StepTrace, second: StepTrace) -> bool:
    """Whether the steps of two traces differ in sizes alone; what came before them may differ."""
    one, other = (_kinds(trace) for trace in (first, second))
    return one == other and [(at - first.begin, phase) for at, phase in first.marks] == [
        (at - second.begin, phase) for at, phase in second.marks
    ]


def _kinds(trace: StepTrace) -> list[str]:
    """For each event of the step the operator that made a storage; empty where one was freed."""
    return [trace.operators[number] if change > 0 else "" for number, change in canonical(trace)[trace.begin :]]


def predict_aligned(first: StepTrace, second: StepTrace, *, accumulation_steps: int = 1) -> MemoryPrediction:
    """The prediction from two traces that are alike, each of a step of so many passes."""
    assert are_alike(first, second), "traces that differ in more than sizes"
    one, other = live_by_category(first), live_by_category(second)
    apart = second.micro_batch - first.micro_batch
    slopes = {category: (other.live[category] - one.live[category]) / apart for category in one.live}
    fixed = {category: one.live[category] - slopes[category] * first.micro_batch for category in one.live}
    step = LiveStep(fixed, one.phases, one.operators)
    growth = LiveStep(slopes, one.phases, one.operators)
    return MemoryPrediction(
        moments=tuple(_moments(step, growth)),
        activations=Affine(_kept(step), _kept(growth)),
        accumulation_steps=accumulation_steps,
        manner=Manner.ALIGNED,
        traced_at=(first.micro_batch, second.micro_batch),
        notes=first.notes,
    )


def predict_fitted(traces: Sequence[StepTrace], *, accumulation_steps: int = 1) -> MemoryPrediction:
    """The prediction where the batch changes what is done: for every phase the line through its two peaks.

    The larger the two micro-batches and the further apart, the better.
    """
    first, second = sorted(traces, key=lambda trace: trace.micro_batch)
    one, other = live_by_category(first), live_by_category(second)

    def line(low: float, high: float) -> Affine:
        return Affine.through((first.micro_batch, low), (second.micro_batch, high))

    moments = []
    for phase in dict.fromkeys(one.phases):
        low, high = _peak_of(one, phase), _peak_of(other, phase)
        live = line(sum(low.values()), sum(high.values()))
        moments.append(Moment(phase=phase, live=live, parts=_nonempty({c: line(low[c], high[c]) for c in low})))
    return MemoryPrediction(
        moments=tuple(moments),
        activations=line(_kept(one), _kept(other)),
        accumulation_steps=accumulation_steps,
        manner=Manner.FITTED,
        traced_at=(first.micro_batch, second.micro_batch),
        notes=first.notes,
    )


def predict_between(first: tuple[int, MemoryTimeline], second: tuple[int, MemoryTimeline]) -> MemoryPrediction | None:
    """The prediction from two measured steps, the smaller micro-batch first; without parts and operators.

    It includes what operators allocate inside themselves. ``None`` if the steps differ in more than sizes.
    """
    (small, one), (large, other) = first, second
    assert small < large, "two micro-batches, the smaller one first"
    if one.phases != other.phases or one.changes != other.changes:
        return None
    live = numpy.array(one.live, dtype=float)
    slopes = (numpy.array(other.live, dtype=float) - live) / (large - small)
    lines = [Affine(*map(float, pair)) for pair in zip(live - slopes * small, slopes, strict=True)]
    found = _largest(one.phases, live - slopes * small, slopes)
    forward = [line for line, phase in zip(lines, one.phases, strict=True) if phase is Phase.FORWARD]
    begin, end = (forward[0], forward[-1]) if forward else (Affine(0.0, 0.0), Affine(0.0, 0.0))
    return MemoryPrediction(
        moments=tuple(Moment(phase=phase.value, live=lines[index], parts={}) for phase, index in found),
        activations=Affine(end.fixed - begin.fixed, end.per_sample - begin.per_sample),
        traced_at=(small, large),
    )


def live_by_category(trace: StepTrace) -> LiveStep:
    """Live bytes of every category as each phase begins and after each event of the step."""
    events = canonical(trace)
    begins: dict[int, list[Phase]] = {}
    for at, phase in trace.marks:
        begins.setdefault(at, []).append(phase)
    category_of = dict(trace.categories)
    before = dict.fromkeys(Category, 0)
    before[Category.BATCH] = trace.batch_bytes
    for number, change in events[: trace.begin]:
        before[category_of.setdefault(number, Category.TEMPORARIES)] += change
    rows: list[tuple[str, Category, int, str]] = []
    current = Phase.IDLE
    for index in range(trace.begin, len(events) + 1):
        for current in begins.get(index, ()):
            rows.append((current.value, Category.BATCH, 0, ""))  # what lives as a phase begins is a moment of it
        if index < len(events):
            number, change = events[index]
            made = Category.ACTIVATIONS if current is Phase.FORWARD else Category.TEMPORARIES
            rows.append((current.value, category_of.setdefault(number, made), change, trace.operators[number]))
    live = {}
    for category in Category:
        own = [change if kind is category else 0 for _, kind, change, _ in rows]
        live[category] = before[category] + numpy.cumsum(own, dtype=float)
    return LiveStep(live, [row[0] for row in rows], [row[3] for row in rows])


def _moments(fixed: LiveStep, slopes: LiveStep) -> Iterator[Moment]:
    """For every phase the moments that are its largest for some micro-batch from 1 on."""
    total, growth = fixed.total(), slopes.total()
    for phase, index in _largest(fixed.phases, total, growth):
        parts = {c: Affine(float(fixed.live[c][index]), float(slopes.live[c][index])) for c in fixed.live}
        yield Moment(
            phase=phase,
            live=Affine(float(total[index]), float(growth[index])),
            parts=_nonempty(parts),
            operator=fixed.operators[index],
        )


def _largest(phases: Sequence[_T], fixed: _Bytes, slopes: _Bytes) -> Iterator[tuple[_T, int]]:
    """For every phase the indices of the lines that are its largest somewhere from 1 on, from left to right."""
    for phase in dict.fromkeys(phases):
        inside = numpy.flatnonzero([one == phase for one in phases])
        for position in _upper_envelope(fixed[inside], slopes[inside]):
            yield phase, int(inside[position])


def _upper_envelope(fixed: _Bytes, slopes: _Bytes) -> Iterator[int]:
    batch = 1.0
    current = int(numpy.lexsort((slopes, fixed + slopes))[-1])
    while True:
        yield current
        steeper = numpy.flatnonzero(slopes > slopes[current])
        if not len(steeper):
            return
        crossings = (fixed[current] - fixed[steeper]) / (slopes[steeper] - slopes[current])
        batch = max(batch, float(crossings.min()))
        if batch > _LARGEST_BATCH:
            return
        meeting = steeper[crossings <= batch]
        current = int(meeting[numpy.argmax(slopes[meeting])])


def _kept(step: LiveStep) -> float:
    """Activations at the end of the last forward pass."""
    ends = [index for index, phase in enumerate(step.phases) if phase == Phase.FORWARD.value]
    return float(step.live[Category.ACTIVATIONS][ends[-1]]) if ends else 0.0


def _peak_of(step: LiveStep, phase: str) -> dict[Category, float]:
    total = step.total()
    inside = [index for index, one in enumerate(step.phases) if one == phase]
    index = max(inside, key=total.__getitem__, default=0)
    return {category: float(live[index]) for category, live in step.live.items()}


def _nonempty(parts: dict[Category, Affine]) -> dict[Category, Affine]:
    return {category: part for category, part in parts.items() if part.fixed or part.per_sample}
