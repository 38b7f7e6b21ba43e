from __future__ import annotations

import msgspec
import pytest

from advisor.measure.measurement import MemoryBreakdown, MemoryMeasurement, SizePoint, Sizing
from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import LARGEST_BATCH, MemoryModel, round_batch

MIB = 2**20


def point(
    batch: int,
    *,
    passes: float,
    optimizer: float = 0.0,
    held_back: float = 0.0,
    seconds: float = 1.0,
    activations: float = 0.0,
) -> SizePoint:
    """A measured point; figures in MiB."""
    peak = max(passes, optimizer)
    return SizePoint(
        micro_batch=batch,
        step_seconds=seconds,
        memory=MemoryMeasurement(
            peak_bytes=round((peak + held_back) * MIB),
            peak_allocated_bytes=round(peak * MIB),
            peak_reserved_bytes=None,
            device_used_bytes=None,
            allocation_retries=None,
            forward_peak_bytes=round(passes * MIB) // 2,
            backward_peak_bytes=round(passes * MIB),
            optimizer_peak_bytes=round(optimizer * MIB),
            breakdown=MemoryBreakdown(
                parameters=40 * MIB,
                buffers=0,
                gradients=40 * MIB,
                optimizer_state=60 * MIB,
                activations=round(activations * MIB),
            ),
        ),
    )


def sizing(*points: SizePoint, out_of_memory_at: int | None = None) -> Sizing:
    return Sizing(points=points, out_of_memory_at=out_of_memory_at, loss_trace=(1.0,))


TWO = sizing(point(2, passes=120, optimizer=100, seconds=0.3), point(4, passes=140, optimizer=100, seconds=0.5))
"""100 MiB + 10 MiB per sample; 0.1 s + 0.1 s per sample."""


def test_the_peak_is_affine_in_the_batch_past_the_optimizer_regime() -> None:
    model = MemoryModel.fit(TWO)
    assert model.predict(4) == 140 * MIB
    assert model.predict(30) == 400 * MIB


def test_the_optimizer_step_is_the_peak_of_small_batches() -> None:
    """The trap: a line through two peaks, one in the optimizer step and one in the backward pass, is far off."""
    model = MemoryModel.fit(
        sizing(
            point(1, passes=60, optimizer=100),
            point(8, passes=130, optimizer=100),
            point(16, passes=210, optimizer=100),
        )
    )
    assert model.predict(1) == 100 * MIB
    assert model.predict(4) == 100 * MIB
    assert model.predict(100) == 1050 * MIB


def test_a_point_in_the_flat_regime_does_not_make_the_line_flatter_than_the_activations() -> None:
    """The trap: profiling runs that had to stop early leave a flat point and a steep one."""
    model = MemoryModel.fit(sizing(point(1, passes=100, activations=10), point(8, passes=130, activations=80)))
    assert model.predict(8) == 130 * MIB
    assert model.predict(108) == 1130 * MIB


def test_only_points_past_the_optimizer_regime_decide_when_there_are_two() -> None:
    # Before it the passes' own peak lies at the end of the backward pass and grows more slowly.
    points = (point(1, passes=95, optimizer=100), point(4, passes=140), point(8, passes=180))
    assert MemoryModel.fit(sizing(*points)).predict(16) == 260 * MIB


def test_the_two_largest_points_decide() -> None:
    bent = (point(1, passes=100), point(2, passes=101), point(8, passes=180), point(16, passes=260))
    assert MemoryModel.fit(sizing(*bent)).predict(32) == 420 * MIB


def test_what_the_allocator_holds_beyond_live_tensors_counts() -> None:
    model = MemoryModel.fit(sizing(point(2, passes=120, held_back=12), point(4, passes=140, held_back=14)))
    assert model.predict(4) == 154 * MIB
    assert model.predict(8) == 198 * MIB  # a tenth of the live bytes, at both points


def test_what_the_allocator_happens_to_hold_back_at_one_point_does_not_move_the_largest_batch() -> None:
    """The trap: a line through what is held back multiplies the chance of two small batches by their distance."""

    def largest(*held_gib: float) -> int:
        points = (
            point(batch, passes=1024 * (1.6 + 0.75 * batch), held_back=1024 * held)
            for batch, held in zip((2, 4), held_gib, strict=True)
        )
        return MemoryModel.fit(sizing(*points)).largest_batch(80 * 2**30, rounded=False)

    live_alone = largest(0.0, 0.0)
    assert live_alone == 99
    for held in ((0.5, 0.1), (0.1, 0.6)):
        assert 0.95 * live_alone <= largest(*held) <= live_alone, held


def test_what_every_point_holds_back_is_expected_of_large_batches_too() -> None:
    model = MemoryModel.fit(sizing(point(2, passes=120, held_back=24), point(4, passes=140, held_back=28)))
    assert model.predict(100) == pytest.approx(1.2 * 1100 * MIB)


def test_the_largest_batch_is_in_closed_form_with_a_margin() -> None:
    model = MemoryModel.fit(TWO)
    # 800 MiB less 5 % leave 760: 66 samples, rounded down to a multiple of 8.
    assert model.largest_batch(800 * MIB) == 64
    assert model.largest_batch(800 * MIB, rounded=False) == 66
    assert model.largest_batch(800 * MIB, margin=0.0, rounded=False) == 70
    assert model.predict(model.largest_batch(400 * MIB)) <= 400 * MIB


@pytest.mark.parametrize(
    ("limit", "largest", "why"),
    [
        (112, 1, "one sample, of 110, fits, though not with 5 % free"),
        (119, 1, "two, of 120, do not"),
        (124, 2, "one has room beside 5 %, two fit without"),
        (134, 3, "two have, three fit without"),
        (144, 4, "three have, four fit without"),
        (154, 4, "four have: five would gain a quarter at most"),
    ],
)
def test_where_few_samples_fit_one_more_is_tried_that_leaves_less_than_the_margin(
    limit: int, largest: int, why: str
) -> None:
    """Trap: of a model that just fitted, one sample was "predicted to need 9.7 GiB; the limit is 10 GiB"."""
    assert MemoryModel.fit(TWO).largest_batch(limit * MIB) == largest, why


def test_where_few_samples_fit_one_that_ran_out_of_memory_is_not_tried_again() -> None:
    model = MemoryModel.fit(TWO).after_out_of_memory(2)
    assert model.largest_batch(124 * MIB) == 1
    assert model.after_out_of_memory(1).largest_batch(124 * MIB) == 0


def test_nothing_fits_when_one_sample_does_not() -> None:
    model = MemoryModel.fit(TWO)
    assert model.largest_batch(105 * MIB) == 0
    assert model.largest_batch(90 * MIB) == 0


def test_nothing_fits_when_the_optimizer_step_does_not() -> None:
    model = MemoryModel.fit(sizing(point(2, passes=20, optimizer=300), point(4, passes=30, optimizer=300)))
    assert model.largest_batch(280 * MIB) == 0
    assert model.predict(1) == 300 * MIB


def test_a_batch_that_ran_out_of_memory_bounds_the_largest_and_widens_the_margin() -> None:
    model = MemoryModel.fit(TWO)
    after = model.after_out_of_memory(12)
    assert after.margin > model.margin
    assert after.largest_batch(4000 * MIB) == 11
    assert after.after_out_of_memory(20).largest_batch(4000 * MIB) == 11
    assert after.after_out_of_memory(6).largest_batch(4000 * MIB) == 5


def test_the_margin_does_not_grow_without_end() -> None:
    model = MemoryModel.fit(TWO)
    for _ in range(20):
        model = model.after_out_of_memory(1000)
    assert model.largest_batch(4000 * MIB) > 200


def test_a_sizing_that_met_its_limit_bounds_the_batch() -> None:
    model = MemoryModel.fit(sizing(point(2, passes=120), point(4, passes=140), out_of_memory_at=8))
    assert model.largest_batch(4000 * MIB) == 7


def test_a_measured_trial_corrects_by_an_added_offset() -> None:
    model = MemoryModel.fit(TWO).calibrated(16, 290 * MIB)
    assert model.predict(16) == 290 * MIB
    assert model.predict(30) == 430 * MIB
    assert model.largest_batch(400 * MIB, margin=0.0, rounded=False) == 27


def test_the_trial_at_the_largest_batch_decides_unless_a_smaller_one_needs_more() -> None:
    model = MemoryModel.fit(TWO).calibrated(16, 290 * MIB)
    assert model.calibrated(8, 181 * MIB).predict(16) == 290 * MIB
    assert model.calibrated(8, 230 * MIB).predict(16) == 310 * MIB
    assert model.calibrated(24, 345 * MIB).predict(16) == 265 * MIB
    assert model.calibrated(24, 345 * MIB).fits_at == 24


def test_a_single_point_gives_a_slope_that_is_too_steep_rather_than_too_flat() -> None:
    model = MemoryModel.fit(sizing(point(2, passes=200, optimizer=150), out_of_memory_at=4))
    assert model.predict(2) == 200 * MIB
    assert model.predict(3) == 250 * MIB
    assert model.largest_batch(1000 * MIB) == 3


def test_memory_that_does_not_grow_leaves_the_batch_to_the_bound_and_the_clock() -> None:
    model = MemoryModel.fit(sizing(point(2, passes=120, seconds=0.3), point(4, passes=119, seconds=0.5)))
    assert model.largest_batch(200 * MIB) == LARGEST_BATCH
    assert model.largest_batch(100 * MIB) == 0


def test_time_is_affine_and_bounds_the_batch_too() -> None:
    model = MemoryModel.fit(TWO)
    assert model.seconds(10) == pytest.approx(1.1)
    assert model.seconds(10, accumulation_steps=3) == pytest.approx(3.3)
    assert model.largest_within_seconds(1.1001) == 10
    assert model.largest_within_seconds(0.01) == 1


def test_a_measured_step_corrects_the_time_of_large_batches_and_keeps_the_fixed_part() -> None:
    model = MemoryModel.fit(TWO).timed(100, 2, 40.2)
    assert model.seconds(100) == pytest.approx(20.1)
    assert model.seconds(0) == pytest.approx(MemoryModel.fit(TWO).seconds(0))


def test_a_line_never_falls() -> None:
    assert Line.through((4, 1.0), (2, 3.0)) == Line(3.0, 0.0)
    assert Line.through((4, 5.0), (2, 3.0)).at(10) == 11.0


@pytest.mark.parametrize(
    ("batch", "rounded"),
    [
        (0, 0),
        (3, 3),
        (5, 5),
        (15, 15),
        (16, 16),
        (17, 16),
        (23, 22),
        (47, 44),
        (63, 60),
        (64, 64),
        (100, 96),
        (255, 240),
    ],
)
def test_batches_are_rounded_to_what_kernels_like(batch: int, rounded: int) -> None:
    assert round_batch(batch) == rounded


def test_rounding_costs_less_than_an_eighth_of_any_batch() -> None:
    """Trap: 23 samples became 16, where a step's fixed time made that a tenth of the throughput."""
    assert all(round_batch(batch) > 7 / 8 * batch for batch in range(1, 5000))


class TestTwoShortStepsOnABusyMachine:
    """Seen with GPT-2 on two cores: 1.88 s at batch 2, 2.14 s at batch 4, then 1.66 s at batch 4 in its trial."""

    flat = sizing(point(2, passes=120, seconds=1.88), point(4, passes=140, seconds=2.14))

    def test_a_trial_at_the_batch_of_the_profiling_runs_keeps_the_growth(self) -> None:
        before = MemoryModel.fit(self.flat)
        after = before.timed(4, 1, 1.66)
        assert after.seconds(4) == pytest.approx(1.66)
        assert after.time.slope / after.time.intercept == pytest.approx(before.time.slope / before.time.intercept)

    def test_no_batch_is_promised_that_would_need_throughput_to_more_than_double(self) -> None:
        model = MemoryModel.fit(sizing(point(2, passes=120, seconds=2.0), point(4, passes=140, seconds=2.0)))
        assert model.largest_within_seconds(4.0) == 16
        slower = model.timed(16, 1, 8.0)
        assert slower.largest_within_seconds(8.0) == 16, "the line knows better than the bound"

    def test_no_step_is_expected_to_begin_below_zero(self) -> None:
        model = MemoryModel.fit(sizing(point(2, passes=120, seconds=0.1), point(4, passes=140, seconds=2.0)))
        assert model.seconds(4) == pytest.approx(2.0)
        assert model.seconds(1) == pytest.approx(0.5)


def traced(**phases: tuple[float, float]) -> MemoryPrediction:
    """A prediction; each phase with MiB whatever the batch and MiB per sample."""
    moments = tuple(
        Moment(phase=phase, live=Affine(fixed * MIB, slope * MIB), parts={}) for phase, (fixed, slope) in phases.items()
    )
    return MemoryPrediction(moments=moments, activations=Affine(0.0, 0.0), traced_at=(2, 4))


class TestForeseenMomentByMoment:
    STEP = traced(optimizer=(300.0, 0.0), backward=(100.0, 20.0))
    PROFILING_RUNS = sizing(
        point(2, passes=140, optimizer=300, activations=30), point(4, passes=180, optimizer=300, activations=60)
    )

    def test_a_peak_that_moves_where_no_profiling_run_was(self) -> None:
        model = MemoryModel.fit(self.PROFILING_RUNS, self.STEP)
        assert [model.predict(batch) // MIB for batch in (4, 10, 20)] == [300, 300, 500]
        assert model.largest_batch(500 * MIB, margin=0.0, rounded=False) == 20

    def test_what_nobody_sees_without_running_is_learned_and_added(self) -> None:
        more = sizing(point(2, passes=150, optimizer=310), point(4, passes=190, optimizer=310))
        model = MemoryModel.fit(more, self.STEP)
        assert model.predict(20) == 510 * MIB
        assert model.calibrated(20, 505 * MIB).predict(20) == 505 * MIB

    def test_time_comes_from_the_profiling_runs(self) -> None:
        assert MemoryModel.fit(TWO, self.STEP).seconds(10) == pytest.approx(MemoryModel.fit(TWO).seconds(10))

    def test_a_moment_that_falls_with_the_batch_is_as_high_as_at_one_sample(self) -> None:
        falling = traced(optimizer=(300.0, -50.0), backward=(100.0, 20.0))
        model = MemoryModel.fit(sizing(point(2, passes=140, optimizer=250), point(4, passes=180)), falling)
        assert model.largest_batch(500 * MIB, margin=0.0, rounded=False) >= 1
        assert model.predict(100) > model.predict(50)


def test_what_the_largest_batch_takes_is_told_in_shares_of_the_limit() -> None:
    """Of the line that is the peak there: the optimizer's step is the peak of a small batch alone."""
    model = MemoryModel(lines=(Line(300.0, 0.0), Line(100.0, 10.0)), time=Line(0.0, 1.0))
    assert model.shares(1000) == pytest.approx((0.1, 0.01))
    corrected = msgspec.structs.replace(model, offset_bytes=50.0)
    assert corrected.shares(1000) == pytest.approx((0.15, 0.01))


def test_both_shares_are_above_zero_and_their_sum_is_the_need_of_the_largest_batch() -> None:
    below = MemoryModel(lines=(Line(-50.0, 10.0),), time=Line(0.0, 1.0))
    fixed, per_sample = below.shares(1000)
    assert fixed == 0.001
    assert fixed + below.largest_batch(1000, rounded=False) * per_sample == pytest.approx(0.95)
    flat = MemoryModel(lines=(Line(1400.0, 0.0), Line(100.0, 10.0)), time=Line(0.0, 1.0))
    assert flat.shares(1000) == pytest.approx((1.39, 0.01)), "not even one sample fits"


@pytest.mark.parametrize(("line", "lost"), [(Line(500.0, 300.0), 1), (Line(500.0, 100.0), 3), (Line(100.0, 10.0), 50)])
def test_a_batch_that_ran_out_of_memory_although_it_should_have_fitted_takes_more(line: Line, lost: int) -> None:
    fixed, per_sample = MemoryModel(lines=(line,), time=Line(0.0, 1.0)).after_out_of_memory(lost).shares(1000)
    assert fixed + lost * per_sample > 1.01
    assert (fixed + line.intercept / 1e9) / per_sample == pytest.approx(line.intercept / line.slope, rel=1e-3)


def test_what_ran_out_of_memory_as_predicted_tells_nothing_new() -> None:
    model = MemoryModel(lines=(Line(100.0, 10.0),), time=Line(0.0, 1.0))
    assert model.after_out_of_memory(95).shares(1000) == pytest.approx(model.shares(1000), rel=1e-6)
