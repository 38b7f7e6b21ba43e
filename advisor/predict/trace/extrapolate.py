"""From two measured steps at two batches to the memory at every batch, as ``envelope`` does it from traces.

Steps that were measured allocation by allocation show all that a trace shows, and what operators take inside
themselves; they cost nothing, as short runs measure them anyway. Only where they lie, at small batches, is given.
"""

from __future__ import annotations

import numpy

from advisor.measure.memory.timeline import MemoryTimeline
from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.predict.trace.envelope import upper_envelope
from advisor.training.training import Phase

__all__ = ["predict_between"]


def predict_between(first: tuple[int, MemoryTimeline], second: tuple[int, MemoryTimeline]) -> MemoryPrediction | None:
    """The prediction from two steps that differ in sizes alone; without parts and operators.

    Args:
        first: A micro-batch, and its step.
        second: A larger one.

    Returns:
        The prediction; ``None`` where the batch changes what is done.
    """
    (small, one), (large, other) = first, second
    assert small < large, "two micro-batches, the smaller one first"
    if one.phases != other.phases or one.changes != other.changes:
        return None
    live = numpy.array(one.live, dtype=float)
    slopes = (numpy.array(other.live, dtype=float) - live) / (large - small)
    fixed = live - slopes * small

    def line(index: int) -> Affine:
        return Affine(float(fixed[index]), float(slopes[index]))

    moments = []
    for phase in dict.fromkeys(one.phases):
        inside = numpy.flatnonzero([there is phase for there in one.phases])
        for position in upper_envelope(fixed[inside], slopes[inside]):
            moments.append(Moment(phase=phase.value, live=line(int(inside[position])), parts={}))
    forward = [index for index, phase in enumerate(one.phases) if phase is Phase.FORWARD]
    begin, end = (line(forward[0]), line(forward[-1])) if forward else (Affine(0.0, 0.0), Affine(0.0, 0.0))
    return MemoryPrediction(
        moments=tuple(moments),
        activations=Affine(end.fixed - begin.fixed, end.per_sample - begin.per_sample),
        traced_at=(small, large),
    )
