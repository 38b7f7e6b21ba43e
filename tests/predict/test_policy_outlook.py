"""From lines against the batch to an answer: does it fit, what is the largest batch, what takes the memory."""

from __future__ import annotations

import msgspec
import pytest

from advisor.hardware.rates import Bandwidth, DeviceRates
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.predict.policy_outlook import Outlook, outlook_of
from advisor.predict.prediction import Affine, Category, MemoryPrediction, Moment, Reserved
from advisor.predict.step_work import StepWork
from tests.predict.rates import group, work_of

BACKWARD = Moment(
    phase="backward",
    live=Affine(100.0, 10.0),
    parts={Category.PARAMETERS: Affine(100.0, 0.0), Category.ACTIVATIONS: Affine(0.0, 10.0)},
    operator="mm.default",
)
OPTIMIZER = Moment(
    phase="optimizer",
    live=Affine(300.0, 0.0),
    parts={Category.PARAMETERS: Affine(100.0, 0.0), Category.OPTIMIZER_STATE: Affine(200.0, 0.0)},
)
PREDICTION = MemoryPrediction(moments=(BACKWARD, OPTIMIZER), activations=Affine(0.0, 9.0), traced_at=(2, 4))


def outlook(
    micro_batch: int,
    limit_bytes: int,
    prediction: MemoryPrediction = PREDICTION,
    work: StepWork | None = None,
    rates: DeviceRates | None = None,
    methods: tuple[MethodSetting, ...] = (),
) -> Outlook:
    return outlook_of(
        prediction,
        workload="net",
        policy=Policy(methods=methods, micro_batch=micro_batch),
        device="a device",
        limit_bytes=limit_bytes,
        limit_from="--memory-limit",
        batch_from="--batch",
        work=work,
        rates=rates,
    )


def test_a_batch_within_the_limit_fits_and_the_largest_one_just_does() -> None:
    found = outlook(8, 1005)
    assert found.fits
    assert found.asked.peak_bytes == 300
    assert found.asked.phase == "optimizer"
    assert found.largest is not None
    assert found.largest.micro_batch == 90
    assert found.largest.peak_bytes == 1000
    assert found.largest.phase == "backward"
    assert found.largest.operator == "mm.default"
    assert found.largest.parts == {Category.PARAMETERS: 100, Category.ACTIVATIONS: 900}
    assert found.largest.activation_bytes == 810


def test_a_batch_above_the_limit_does_not_fit_though_a_smaller_one_does() -> None:
    found = outlook(100, 1005)
    assert not found.fits
    assert found.largest is not None
    assert found.largest.micro_batch == 90


def test_nothing_fits_below_what_the_optimizer_needs_whatever_the_batch() -> None:
    found = outlook(1, 299)
    assert not found.fits
    assert found.largest is None


def test_a_batch_that_adds_nothing_has_no_largest() -> None:
    prediction = MemoryPrediction(moments=(OPTIMIZER,), activations=Affine(0.0, 0.0), traced_at=(2, 4))
    found = outlook(1000, 300, prediction)
    assert found.fits
    assert found.largest is None


def replayed(peak_bytes: int, largest_batch: int) -> MemoryPrediction:
    native = Reserved(
        expandable=False,
        micro_batch=8,
        peak_bytes=peak_bytes,
        allocated_bytes=peak_bytes,
        largest_batch=largest_batch,
        largest_peak_bytes=1000 if largest_batch else 0,
    )
    return MemoryPrediction(
        moments=(BACKWARD, OPTIMIZER), activations=Affine(0.0, 9.0), traced_at=(2, 4), reserved=(native,)
    )


def test_where_an_allocator_reserves_memory_that_decides() -> None:
    found = outlook(8, 1005, replayed(peak_bytes=500, largest_batch=70))
    assert found.fits
    assert found.largest is not None
    assert found.largest.micro_batch == 70
    assert found.asked.peak_bytes == 300, "what tensors take is said as well"
    found = outlook(8, 499, replayed(peak_bytes=500, largest_batch=0))
    assert not found.fits
    assert found.largest is None


def test_segments_that_expand_decide_where_the_policy_has_them() -> None:
    native = replayed(peak_bytes=1006, largest_batch=7)
    expandable = msgspec.structs.replace(
        native.reserved[0], expandable=True, peak_bytes=900, largest_batch=8, largest_peak_bytes=900
    )
    both = msgspec.structs.replace(native, reserved=(*native.reserved, expandable))
    assert not outlook(8, 1005, both).fits
    found = outlook(8, 1005, both, methods=(use("expandable_segments"),))
    assert found.fits
    assert found.allocator == expandable
    assert found.largest is not None
    assert found.largest.micro_batch == 8


RATES = DeviceRates(
    matmul_flops_per_second={"float32": 10.0},
    bandwidth=Bandwidth.constant(1e9),
    fresh_bandwidth=Bandwidth.constant(1e9),
    measured=False,
)
WORK = work_of(group(flops=(0.0, 20.0)))


def test_the_time_of_a_step_is_predicted_at_both_batches_where_rates_are_known() -> None:
    found = outlook(8, 1005, work=WORK, rates=RATES)
    assert [one.batch for one in found.times] == [8, 90]
    assert found.times[0].predicted_seconds == pytest.approx(16.0)
    assert outlook(8, 1005, work=WORK).times == ()
    assert outlook(8, 1005, rates=RATES).times == ()
