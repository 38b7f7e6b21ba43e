"""From two traces of the same step at two batches to its memory at every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy
from numpy.typing import NDArray

from advisor.predict.prediction import Affine, Category, Manner, MemoryPrediction, Moment
from advisor.predict.trace.step_trace import StepTrace
from advisor.training.training import Phase

__all__ = ["are_alike", "canonical", "predict_aligned", "predict_fitted", "upper_envelope"]

_Bytes = NDArray[numpy.float64]

_LARGEST_BATCH = 2.0**24
"""Beyond any batch: a moment that is the largest from there on is none that anybody meets."""


class _Step(msgspec.Struct, frozen=True):
    """Live bytes after every event of the step, by category: ``live[category][event]``."""

    live: dict[Category, _Bytes]
    phases: list[str]
    operators: list[str]

    def total(self) -> _Bytes:
        total: _Bytes = numpy.sum(list(self.live.values()), axis=0)
        return total


def canonical(trace: StepTrace) -> list[tuple[int, int]]:
    """The events, those of one run of frees in the order of birth.

    Which of several tensors dies first when a dictionary is cleared may differ between two runs; nothing is taken
    meanwhile, so that it does not matter.
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
    """Whether the steps of two traces differ in sizes alone.

    Which of two storages dies first may differ; what counts is how much lives at each moment. What came before the
    step may differ too: some things are made once in a process.
    """
    one, other = (_kinds(trace) for trace in (first, second))
    return one == other and [(at - first.begin, phase) for at, phase in first.marks] == [
        (at - second.begin, phase) for at, phase in second.marks
    ]


def _kinds(trace: StepTrace) -> list[str]:
    """For each event of the step the operator that made a storage, or that one was given back."""
    return [trace.operators[number] if change > 0 else "" for number, change in canonical(trace)[trace.begin :]]


def predict_aligned(first: StepTrace, second: StepTrace, *, accumulation_steps: int = 1) -> MemoryPrediction:
    """The prediction from two traces that are alike.

    Args:
        first: At one micro-batch.
        second: At another.
        accumulation_steps: Passes of the traced step.
    """
    assert are_alike(first, second), "traces that differ in more than sizes"
    one, other = _live(first), _live(second)
    apart = second.micro_batch - first.micro_batch
    slopes = {category: (other.live[category] - one.live[category]) / apart for category in one.live}
    fixed = {category: one.live[category] - slopes[category] * first.micro_batch for category in one.live}
    step = _Step(fixed, one.phases, one.operators)
    growth = _Step(slopes, one.phases, one.operators)
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

    Args:
        traces: Two, at different micro-batches; the larger and the further apart, the better.
        accumulation_steps: Passes of the traced step.
    """
    first, second = sorted(traces, key=lambda trace: trace.micro_batch)
    one, other = _live(first), _live(second)
    moments = []
    for phase in dict.fromkeys(one.phases):
        low, high = (_peak_of(step, phase) for step in (one, other))
        parts = {
            category: _line(first.micro_batch, low[category], second.micro_batch, high[category]) for category in low
        }
        live = _line(first.micro_batch, sum(low.values()), second.micro_batch, sum(high.values()))
        moments.append(Moment(phase=phase, live=live, parts={c: part for c, part in parts.items() if _is_any(part)}))
    kept = [_kept(step) for step in (one, other)]
    return MemoryPrediction(
        moments=tuple(moments),
        activations=_line(first.micro_batch, kept[0], second.micro_batch, kept[1]),
        accumulation_steps=accumulation_steps,
        manner=Manner.FITTED,
        traced_at=(first.micro_batch, second.micro_batch),
        notes=first.notes,
    )


def _live(trace: StepTrace) -> _Step:
    """Live bytes of every category as each phase begins and after each event of the step."""
    events = canonical(trace)
    begins: dict[int, list[Phase]] = {}
    for at, phase in trace.marks:
        begins.setdefault(at, []).append(phase)
    category_of = dict(trace.categories)
    changes: list[tuple[Category, int]] = []
    phases: list[str] = []
    operators: list[str] = []

    def record(phase: Phase, category: Category, change: int, operator: str) -> None:
        changes.append((category, change))
        phases.append(phase.value)
        operators.append(operator)

    before = dict.fromkeys(Category, 0)
    before[Category.BATCH] = trace.batch_bytes
    for number, change in events[: trace.begin]:
        before[category_of.setdefault(number, Category.TEMPORARIES)] += change
    current = Phase.IDLE
    for index in range(trace.begin, len(events) + 1):
        for phase in begins.get(index, ()):
            current = phase
            record(phase, Category.BATCH, 0, "")  # what lives as it begins is a moment of it
        if index < len(events):
            number, change = events[index]
            made = Category.ACTIVATIONS if current is Phase.FORWARD else Category.TEMPORARIES
            record(current, category_of.setdefault(number, made), change, trace.operators[number])
    live = {category: numpy.zeros(len(changes)) for category in Category}
    for position, (category, change) in enumerate(changes):
        live[category][position] = change
    return _Step({c: before[c] + numpy.cumsum(steps) for c, steps in live.items()}, phases, operators)


def _moments(fixed: _Step, slopes: _Step) -> Iterator[Moment]:
    """For every phase the moments that are its largest for some micro-batch from 1 on."""
    total, growth = fixed.total(), slopes.total()
    for phase in dict.fromkeys(fixed.phases):
        inside = numpy.flatnonzero(numpy.array([one == phase for one in fixed.phases]))
        for position in upper_envelope(total[inside], growth[inside]):
            index = int(inside[position])
            parts = {c: Affine(float(fixed.live[c][index]), float(slopes.live[c][index])) for c in fixed.live}
            yield Moment(
                phase=phase,
                live=Affine(float(total[index]), float(growth[index])),
                parts={category: part for category, part in parts.items() if _is_any(part)},
                operator=fixed.operators[index],
            )


def upper_envelope(fixed: _Bytes, slopes: _Bytes) -> Iterator[int]:
    """Positions of the lines that are the largest somewhere from 1 on, from left to right."""
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


def _kept(step: _Step) -> float:
    """Activations at the end of the last forward pass."""
    ends = [index for index, phase in enumerate(step.phases) if phase == Phase.FORWARD.value]
    return float(step.live[Category.ACTIVATIONS][ends[-1]]) if ends else 0.0


def _peak_of(step: _Step, phase: str) -> dict[Category, float]:
    inside = [index for index, one in enumerate(step.phases) if one == phase]
    index = max(inside, key=lambda position: float(step.total()[position]), default=0)
    return {category: float(live[index]) for category, live in step.live.items()}


def _line(x1: int, y1: float, x2: int, y2: float) -> Affine:
    slope = (y2 - y1) / (x2 - x1)
    return Affine(y2 - slope * x2, slope)


def _is_any(part: Affine) -> bool:
    return bool(part.fixed or part.per_sample)
