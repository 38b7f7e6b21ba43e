"""The timeline of a traced step keeps its peak, its phases and its categories, in few moments."""

import msgspec
import pytest

from advisor.predict.prediction import Category
from advisor.predict.trace.envelope import predict_aligned
from advisor.predict.trace.step_trace import StepTrace
from advisor.predict.trace.thinned import thinned

from .test_envelope import trace


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 4, 10])
def test_it_has_the_peaks_that_are_predicted_at_that_batch(micro_batch: int) -> None:
    found = thinned(trace(2), trace(4), micro_batch, passes=1)
    predicted = predict_aligned(trace(2), trace(4))
    total = [sum(moment) for moment in zip(*found.live.values(), strict=True)]
    assert max(total) == predicted.peak(micro_batch)
    assert found.micro_batch == micro_batch
    ends = [*(begin for begin, _ in found.phases[1:]), len(total)]
    peaks: dict[str, int] = {}
    for (begin, phase), end in zip(found.phases, ends, strict=True):
        peaks[phase] = max(peaks.get(phase, 0), *total[begin:end])
    assert peaks == predicted.phase_peaks(micro_batch)


def test_categories_are_those_of_the_trace_without_empty_ones() -> None:
    found = thinned(trace(2), trace(4), 4, passes=1)
    assert set(found.live) == {Category.PARAMETERS, Category.GRADIENTS, Category.ACTIVATIONS, Category.BATCH}
    assert max(found.live[Category.GRADIENTS]) == 300


def test_traces_that_differ_give_the_nearer_one() -> None:
    other = msgspec.structs.replace(trace(4), operators=[*trace(4).operators[:-1], "another"])
    found = thinned(trace(2), other, 3, passes=2)
    assert (found.micro_batch, found.passes) == (2, 2)


def with_many_moments(batch: int) -> StepTrace:
    """A step in whose forward pass 2000 tensors come and go, the last of them the largest."""
    own = trace(batch)
    more = [(10 + number, size) for number in range(1, 2001) for size in (number, -number)]
    return msgspec.structs.replace(
        own,
        events=[own.events[0], *more, *own.events[1:]],
        marks=[own.marks[0], *((at + len(more), phase) for at, phase in own.marks[1:])],
        operators=[*own.operators, *(["more"] * 2010)],
    )


def test_thousands_of_moments_become_a_few_hundred_and_the_peak_stays() -> None:
    found = thinned(with_many_moments(2), with_many_moments(4), 4, passes=1)
    total = [sum(moment) for moment in zip(*found.live.values(), strict=True)]
    assert len(total) < 250
    assert max(total) == 100 + 2000 + 4, "parameters, the largest tensor and the batch"
