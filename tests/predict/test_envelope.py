"""Two traces of one step are made one, allocation by allocation."""

from __future__ import annotations

import pytest

from advisor.predict.prediction import Affine, Category, Manner
from advisor.predict.trace.envelope import are_alike, canonical, predict_aligned, predict_fitted
from advisor.predict.trace.scratch import Call
from advisor.predict.trace.step_trace import StepTrace, with_scratch
from advisor.training.training import Phase

F, B, O, I = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.IDLE  # noqa: E741


def trace(
    batch: int, *, order: tuple[int, int] = (1, 2), operators: tuple[str, ...] = ("make", "f", "f", "g")
) -> StepTrace:
    """100 bytes of parameters; the forward pass makes 10 a sample and then 20; the backward pass 300 of gradients."""
    first, second = order
    sizes = {1: 10 * batch, 2: 20 * batch}
    return StepTrace(
        micro_batch=batch,
        events=[
            (0, 100),
            (1, 10 * batch),
            (2, 20 * batch),
            (3, 300),
            (first, -sizes[first]),
            (second, -sizes[second]),
            (3, -300),
        ],
        begin=1,
        marks=[(1, F), (3, B), (6, O), (7, I)],
        categories={0: Category.PARAMETERS, 3: Category.GRADIENTS},
        operators=list(operators),
        batch_bytes=batch,
        notes=("a note",),
        calls=[],
    )


def test_each_phase_has_the_line_of_its_largest_moment() -> None:
    memory = predict_aligned(trace(2), trace(4))
    assert memory.phase_peaks(100) == {"forward": 3200, "backward": 3500, "optimizer": 500, "idle": 200}
    assert memory.activations == Affine(0.0, 30.0)
    assert memory.traced_at == (2, 4)
    assert memory.notes == ("a note",)


def test_the_parts_of_a_moment_sum_to_what_lives() -> None:
    memory = predict_aligned(trace(2), trace(4))
    for moment in memory.moments:
        for batch in (1, 7, 1000):
            assert sum(part.at(batch) for part in moment.parts.values()) == pytest.approx(moment.live.at(batch))
    assert memory.breakdown(10) == {
        Category.PARAMETERS: 100,
        Category.GRADIENTS: 300,
        Category.ACTIVATIONS: 300,
        Category.BATCH: 10,
    }


def test_it_is_what_a_trace_at_any_batch_says() -> None:
    memory = predict_aligned(trace(2), trace(4))
    direct = predict_aligned(trace(50), trace(60))
    assert memory.phase_peaks(55) == direct.phase_peaks(55)


def test_which_of_several_dies_first_does_not_matter() -> None:
    assert canonical(trace(2, order=(2, 1))) == canonical(trace(2))
    assert are_alike(trace(2, order=(2, 1)), trace(4))


def test_steps_that_do_something_else_are_not_alike() -> None:
    assert not are_alike(trace(2), trace(4, operators=("make", "f", "h", "g")))


def test_what_came_before_the_step_may_differ() -> None:
    later = trace(4)
    more = StepTrace(
        micro_batch=4,
        events=[(4, 8), (4, -8), *later.events],
        begin=later.begin + 2,
        marks=[(at + 2, phase) for at, phase in later.marks],
        categories=later.categories,
        operators=[*later.operators, "once"],
        batch_bytes=4,
        notes=(),
        calls=[],
    )
    assert are_alike(trace(2), more)
    assert predict_aligned(trace(2), more).phase_peaks(10) == predict_aligned(trace(2), trace(4)).phase_peaks(10)


def test_where_they_are_not_alike_each_phase_gets_a_line_and_it_is_said() -> None:
    memory = predict_fitted([trace(8), trace(4)])
    assert memory.manner is Manner.FITTED
    assert memory.phase_peaks(100) == predict_aligned(trace(2), trace(4)).phase_peaks(100)


def test_what_an_operator_takes_inside_itself_counts_where_it_runs() -> None:
    call = Call("convolution.default", ())
    inside = {call: Affine(1000.0, 5.0)}
    traces = [
        with_scratch(StepTrace(**{**_fields(trace(batch)), "calls": [(3, call, batch)]}), inside) for batch in (2, 4)
    ]
    memory = predict_aligned(*traces)
    # The operator begins the backward pass: 30 a sample and the batch are there, and 100 of parameters.
    assert memory.phase_peaks(10)["backward"] == 100 + 10 + 300 + 1000 + 50
    assert memory.phase_peaks(10)["forward"] == predict_aligned(trace(2), trace(4)).phase_peaks(10)["forward"]
    assert memory.peak_moment(10).operator == "inside convolution.default"


def _fields(one: StepTrace) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}
