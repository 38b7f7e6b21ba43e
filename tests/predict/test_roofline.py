from __future__ import annotations

import msgspec
import pytest

from advisor.hardware.rates import Bandwidth
from advisor.phase import Phase
from advisor.predict.roofline import Bound, PredictedStep, predict_step
from advisor.predict.step_work import Kind
from tests.predict.rates import group, rates, work_of


def step(*groups, batch: int = 1, **changes) -> PredictedStep:  # type: ignore[no-untyped-def]
    return predict_step(work_of(*groups), batch, rates(**changes))


def bound_of(predicted: PredictedStep) -> Bound:
    """What most of a step's time is bound by."""
    seconds = {bound: sum(one.seconds_by_bound[bound] for one in predicted.phases) for bound in Bound}
    return max(seconds, key=seconds.__getitem__)


@pytest.mark.parametrize(
    ("amounts", "seconds", "bound"),
    [
        ({"flops": 1000, "read_bytes": 10, "launches": 1}, 10.0, Bound.COMPUTE),
        ({"flops": 1000, "read_bytes": 200, "launches": 1}, 20.0, Bound.BANDWIDTH),
        ({"read_bytes": 20, "written_bytes": 30, "launches": 1}, 5.0, Bound.BANDWIDTH),
        ({"fresh_bytes": 50, "launches": 1}, 10.0, Bound.BANDWIDTH),
        ({"flops": 1000, "read_bytes": 10, "launches": 100}, 50.0, Bound.LAUNCH),
        ({"kind": Kind.TO_DEVICE, "read_bytes": 8, "fresh_bytes": 8, "launches": 1}, 4.0, Bound.TRANSFER),
        ({"kind": Kind.TO_HOST, "read_bytes": 8, "fresh_bytes": 8, "launches": 1}, 8.0, Bound.TRANSFER),
    ],
)
def test_an_operator_takes_as_long_as_its_slowest_part(amounts, seconds: float, bound: Bound) -> None:  # type: ignore[no-untyped-def]
    predicted = step(group(**amounts))
    assert predicted.predicted_seconds == pytest.approx(seconds)
    assert bound_of(predicted) is bound


@pytest.mark.parametrize(
    ("kind", "number_format", "rate"),
    [
        (Kind.MATRIX, "float32", 100.0),
        (Kind.MATRIX, "bfloat16", 400.0),
        (Kind.ATTENTION, "bfloat16", 400.0),
        (Kind.CONVOLUTION, "float32", 50.0),
        (Kind.CONVOLUTION, "bfloat16", 400.0),  # no rate of its own: a product's
        (Kind.MATRIX, "float64", 100.0),  # no rate at all: float32's
    ],
)
def test_every_number_format_has_its_rate(kind: Kind, number_format: str, rate: float) -> None:
    predicted = step(group(kind=kind, number_format=number_format, flops=4000.0))
    assert predicted.predicted_seconds == pytest.approx(4000 / rate)


def test_exponentials_and_random_numbers_take_time_to_compute_where_it_is_known() -> None:
    functions = group(kind=Kind.FUNCTION, fresh_bytes=100.0)
    random = group(kind=Kind.RANDOM, written_bytes=100.0)
    slow = step(functions, random, function_bytes_per_second=2.0, random_bytes_per_second=1.0)
    assert slow.predicted_seconds == pytest.approx(50 + 100)
    assert bound_of(slow) is Bound.COMPUTE
    unknown = step(functions, random)
    assert unknown.predicted_seconds == pytest.approx(20 + 10)
    assert bound_of(unknown) is Bound.BANDWIDTH


def test_large_and_small_operators_do_not_hide_each_other() -> None:
    """One large product and many tiny ones: their sums alone would say that the launches are hidden."""
    predicted = step(group(flops=10_000, launches=1), group(flops=10, launches=20))
    assert predicted.predicted_seconds == pytest.approx(100 + 10)
    forward = predicted.phase(Phase.FORWARD)
    assert forward is not None
    assert forward.seconds_by_bound[Bound.LAUNCH] == pytest.approx(10)
    assert forward.bound is Bound.COMPUTE


def test_each_phase_has_its_time_its_bound_and_its_intensity() -> None:
    predicted = step(
        group(Phase.FORWARD, flops=1000, read_bytes=50),
        group(Phase.FORWARD, Kind.TO_DEVICE, read_bytes=4, fresh_bytes=4),
        group(Phase.BACKWARD, flops=2000, read_bytes=50, written_bytes=50),
        group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=60, written_bytes=40, launches=2),
    )
    assert [one.phase for one in predicted.phases] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert [one.predicted_seconds for one in predicted.phases] == pytest.approx([12, 20, 10])
    assert [one.bound for one in predicted.phases] == [Bound.COMPUTE, Bound.COMPUTE, Bound.BANDWIDTH]
    assert [one.flops / one.moved_bytes for one in predicted.phases] == pytest.approx([20, 20, 0])
    assert [one.transferred_bytes for one in predicted.phases] == [4, 0, 0]
    assert predicted.intensity == pytest.approx(3000 / 250)
    assert predicted.share(Phase.OPTIMIZER) == pytest.approx(10 / 42)
    assert predicted.share(Phase.IDLE) == 0
    assert predicted.phase(Phase.IDLE) is None


def test_a_larger_batch_amortizes_what_does_not_grow() -> None:
    groups = group(flops=(0, 100)), group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=100)
    few, many = step(*groups, batch=1), step(*groups, batch=100)
    assert few.predicted_seconds == pytest.approx(1 + 10)
    assert many.predicted_seconds == pytest.approx(100 + 10)
    assert bound_of(few) is Bound.BANDWIDTH
    assert bound_of(many) is Bound.COMPUTE
    assert many.predicted_samples_per_second > 9 * few.predicted_samples_per_second


def test_small_tensors_move_at_the_rate_of_the_cache() -> None:
    curve = Bandwidth(sizes=(100.0, 10_000.0), bytes_per_second=(20.0, 2.0))
    small = step(group(kind=Kind.OTHER, read_bytes=10_000.0, launches=100), bandwidth=curve, launch_seconds=None)
    large = step(group(kind=Kind.OTHER, read_bytes=10_000.0, launches=1), bandwidth=curve, launch_seconds=None)
    assert small.predicted_seconds == pytest.approx(500)
    assert large.predicted_seconds == pytest.approx(5000)


def test_without_a_known_time_of_a_launch_nothing_is_bound_by_it() -> None:
    predicted = step(group(flops=1, read_bytes=1, launches=10**6), launch_seconds=None)
    assert bound_of(predicted) is Bound.BANDWIDTH


def test_a_prediction_is_a_record() -> None:
    predicted = step(group(flops=1000), group(Phase.BACKWARD, flops=2000))
    assert msgspec.json.decode(msgspec.json.encode(predicted), type=PredictedStep) == predicted
