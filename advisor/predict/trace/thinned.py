"""A traced step as a timeline of few moments, at the batch that is of interest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from advisor.predict.step_timeline import StepTimeline
from advisor.predict.trace.envelope import LiveStep, are_alike, live_by_category
from advisor.predict.trace.step_trace import StepTrace

__all__ = ["thinned"]

_MOMENTS = 160
"""About as many as a picture can show."""


def thinned(first: StepTrace, second: StepTrace, micro_batch: int, *, passes: int) -> StepTimeline:
    """The timeline at a micro-batch: between two traces that are alike, else of the one that is nearer.

    Of moments that follow each other within a phase, only the one with the most live bytes is kept.
    """
    near = min((first, second), key=lambda trace: abs(trace.micro_batch - micro_batch))
    step = live_by_category(near)
    if are_alike(first, second):
        one, other = live_by_category(first), live_by_category(second)
        share = (micro_batch - first.micro_batch) / (second.micro_batch - first.micro_batch)
        live = {kind: one.live[kind] + share * (other.live[kind] - one.live[kind]) for kind in one.live}
        step = LiveStep(live, one.phases, one.operators)
        near_batch = micro_batch
    else:
        near_batch = near.micro_batch
    total = step.total()
    kept = [max(span, key=total.__getitem__) for span in _spans(step.phases)]
    phases: list[tuple[int, str]] = []
    for position, moment in enumerate(kept):
        if not phases or phases[-1][1] != step.phases[moment]:
            phases.append((position, step.phases[moment]))
    live_bytes = {kind: tuple(round(float(live[moment])) for moment in kept) for kind, live in step.live.items()}
    return StepTimeline(
        micro_batch=near_batch,
        passes=passes,
        phases=tuple(phases),
        live={kind: values for kind, values in live_bytes.items() if any(values)},
        operator=step.operators[int(numpy.argmax(total))],
    )


def _spans(phases: list[str]) -> Iterator[range]:
    """Spans of moments of about the same length, none of which has two phases."""
    length = max(1, len(phases) // _MOMENTS)
    begin = 0
    for end in range(1, len(phases) + 1):
        if end == len(phases) or phases[end] != phases[begin] or end - begin == length:
            yield range(begin, end)
            begin = end
