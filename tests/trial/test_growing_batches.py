"""When profiling runs at growing batches end: pure decisions, on made-up points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from advisor.measure.measurement import MemoryBreakdown, MemoryMeasurement, SizePoint
from advisor.trial.spec import SizeTrial
from advisor.trial.worker.growing_batches import looks_hopeless, next_batch, suffice, telling
from tests.trial.specs import spec

MIB = 2**20


def size_point(
    micro_batch: int, *, peak: int, activations: int, step_seconds: float = 1.0, parameters: int = 1
) -> SizePoint:
    breakdown = MemoryBreakdown(
        parameters=parameters, buffers=0, gradients=0, optimizer_state=2, activations=activations
    )
    memory = MemoryMeasurement(
        peak_bytes=peak,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None,
        device_used_bytes=None,
        allocation_retries=None,
        forward_peak_bytes=0,
        backward_peak_bytes=peak,
        optimizer_peak_bytes=0,
        breakdown=breakdown,
    )
    return SizePoint(micro_batch=micro_batch, memory=memory, step_seconds=step_seconds)


def test_a_flat_start_inside_the_backward_pass_does_not_suffice() -> None:
    """Where the optimizer runs inside the backward pass, its peak has no phase of its own."""
    one, two, four = (
        size_point(1, peak=1000, activations=100),
        size_point(2, peak=1010, activations=200),
        size_point(4, peak=1180, activations=400),
    )
    assert not suffice([one])
    assert not suffice([one, two])
    assert suffice([one, two, four])


def test_no_more_are_run_for_memory_once_every_batch_is_predicted() -> None:
    flat = [
        size_point(1, peak=1000, activations=100, step_seconds=1.0),
        size_point(2, peak=1010, activations=200, step_seconds=1.5),
    ]
    trial = spec(kind=SizeTrial, memory_limit_bytes=4000, measure_seconds=60.0)
    assert next_batch(flat, trial, spent=0.1, making=0.0) == 4
    assert next_batch(flat, trial, spent=0.1, making=0.0, predicted_largest=math.inf) is None
    quick = [msgspec.structs.replace(point, step_seconds=0.001) for point in flat]
    roomy = msgspec.structs.replace(trial, memory_limit_bytes=2**30)
    assert next_batch(quick, roomy, spent=0.1, making=0.0, predicted_largest=math.inf) == 4, (
        "their time says nothing yet"
    )


def test_no_line_is_drawn_to_more_than_four_times_the_batch() -> None:
    """The trap: at small batches one tensor sets the peak, at large ones another, of which a sample needs thrice."""
    slow = [
        size_point(2, peak=11_900, activations=50, step_seconds=0.15),
        size_point(4, peak=12_400, activations=70, step_seconds=0.2),
    ]
    trial = spec(
        kind=SizeTrial,
        memory_limit_bytes=2**30,
        limit_of_timed_bytes=25_000,
        largest_batch=48,
        measure_seconds=60.0,
    )
    assert suffice(slow)
    assert next_batch(slow, trial, spent=0.1, making=0.0) == 16, "48 is the largest: 12 reach it, and batches double"
    eight = [*slow, size_point(8, peak=13_400, activations=110, step_seconds=0.3)]
    assert next_batch(eight, trial, spent=0.1, making=0.0) == 16
    sixteen = [*eight, size_point(16, peak=16_900, activations=190, step_seconds=0.5)]
    assert next_batch(sixteen, trial, spent=0.1, making=0.0) is None
    assert next_batch(slow, trial, spent=0.1, making=0.0, predicted_largest=36.0) is None, "not where all is known"
    assert next_batch(slow, trial, spent=0.1, making=0.0, predicted_largest=36.0, in_chunks=True) == 32, (
        "but where a method works in chunks that small batches do not fill"
    )
    hurried = msgspec.structs.replace(trial, measure_seconds=1.0)
    assert next_batch(slow, hurried, spent=0.9, making=0.0) is None, "nor beyond the time that it may take"


def test_no_batch_is_tried_for_its_time_that_no_timed_trial_can_have() -> None:
    quick = [size_point(batch, peak=1000, activations=100, step_seconds=0.001) for batch in (2, 4)]
    trial = spec(kind=SizeTrial, memory_limit_bytes=2**30, measure_seconds=60.0)
    assert next_batch(quick, trial, spent=0.1, making=0.0, predicted_largest=100.0) == 8
    assert next_batch(quick, trial, spent=0.1, making=0.0, predicted_largest=6.9) == 6
    assert next_batch(quick, trial, spent=0.1, making=0.0, predicted_largest=4.5) is None
    assert next_batch(quick, trial, spent=0.1, making=0.0, predicted_largest=0.5) is None


def test_steps_that_do_not_grow_are_run_at_larger_batches_until_they_tell_how_long_a_sample_takes() -> None:
    """The trap: nearly all of a step is the update of the weights, so that any batch looks as quick as two samples."""
    flat = [size_point(batch, peak=1000, activations=100, step_seconds=0.07) for batch in (2, 4)]
    trial = spec(kind=SizeTrial, memory_limit_bytes=2**30, largest_batch=3072, measure_seconds=9.0)
    known: dict[str, float] = {"spent": 0.5, "making": 0.0, "predicted_largest": math.inf}
    assert telling(flat[-1], trial)
    assert next_batch(flat, trial, **known) == 32
    longer = size_point(32, peak=1000, activations=100, step_seconds=0.1)
    assert next_batch([*flat, longer], trial, **known) is None
    as_long = size_point(32, peak=1000, activations=100, step_seconds=0.07)
    assert next_batch([*flat, as_long], trial, **known) == 256
    assert next_batch([*flat, as_long], trial, spent=8.5, making=0.0, predicted_largest=math.inf) is None
    beside = msgspec.structs.replace(trial, compare_at=512)
    assert next_batch(flat, beside, **known) is None, "the comparison tells"


def rising(count: int, step_seconds: Callable[[int], float]) -> list[SizePoint]:
    """Points at doubling batches, from 2 on, with 10 MiB of activations for each sample."""
    batches = [2 * 2**index for index in range(count)]
    return [
        size_point(
            batch,
            peak=(100 + 10 * batch) * MIB,
            activations=10 * batch * MIB,
            parameters=100 * MIB,
            step_seconds=step_seconds(batch),
        )
        for batch in batches
    ]


def test_batches_grow_until_they_say_something_about_large_ones() -> None:
    """The trap: two launch-bound steps of the smallest batches, extrapolated a hundredfold."""

    def last_batch(device: str, step_seconds: Callable[[int], float], **changes: Any) -> int:
        trial = spec(kind=SizeTrial, device=device, memory_limit_bytes=16 * 2**30, measure_seconds=60.0, **changes)
        for count in range(1, 20):
            points = rising(count, step_seconds)
            following = next_batch(points, trial, spent=0.1, making=0.0, predicted_largest=math.inf)
            if following is None:
                return points[-1].micro_batch
            assert following == 2 * points[-1].micro_batch
        raise AssertionError("it never ends")

    launch_bound = lambda batch: 0.01  # noqa: E731
    assert last_batch("cpu", lambda batch: 0.01 * batch) == 8  # 0.08 s
    assert last_batch("cuda:0", launch_bound) == 256  # 2.5 of 16 GiB
    assert last_batch("cuda:0", lambda batch: 0.01 * batch) == 32  # 0.32 s
    assert last_batch("cuda:0", launch_bound, largest_batch=64) == 64


def test_time_ends_the_growth_on_a_gpu_too() -> None:
    points = rising(4, lambda batch: 0.01)
    trial = spec(kind=SizeTrial, device="cuda:0", memory_limit_bytes=2**36, measure_seconds=10.0)
    assert next_batch(points, trial, spent=5.0, making=0.0, predicted_largest=math.inf) == 32
    assert next_batch(points, trial, spent=9.95, making=0.0, predicted_largest=math.inf) is None
    assert (
        next_batch(points, trial, spent=5.0, making=4.0, predicted_largest=math.inf) is None
    )  # the batches themselves are dear
    short = msgspec.structs.replace(trial, time_limit_seconds=8.0)
    assert next_batch(points, short, spent=5.0, making=0.0, predicted_largest=math.inf) is None


def test_compiling_is_not_taken_from_the_stepping_but_counts_for_the_hard_limit_and_may_come_again() -> None:
    points = rising(2, lambda batch: 0.01)
    trial = spec(kind=SizeTrial, device="cuda:0", memory_limit_bytes=2**36, measure_seconds=10.0)
    patient = msgspec.structs.replace(trial, time_limit_seconds=120.0)
    assert next_batch(points, patient, spent=35.0, making=0.0, predicted_largest=math.inf) is None
    assert next_batch(points, patient, spent=35.0, making=0.0, settling=30.0, predicted_largest=math.inf) == 8
    short = msgspec.structs.replace(trial, time_limit_seconds=80.0)
    assert next_batch(points, short, spent=35.0, making=0.0, settling=30.0, predicted_largest=math.inf) is None, (
        "65 s of 80 are too near"
    )


def test_large_parameters_are_no_sign_of_a_large_batch() -> None:
    trial = spec(kind=SizeTrial, device="cuda:0", memory_limit_bytes=80 * 2**30)
    heavy = size_point(2, peak=30 * 2**30, parameters=25 * 2**30, activations=5 * 2**30, step_seconds=0.1)
    assert not telling(heavy, trial)
    assert telling(msgspec.structs.replace(heavy, step_seconds=0.2), trial)
    assert telling(heavy, msgspec.structs.replace(trial, memory_limit_bytes=60 * 2**30))


def paced(*seconds: float) -> list[SizePoint]:
    """Steps of so many seconds at 2, 4, 8 ... samples."""
    return [size_point(2 << power, peak=1, activations=1, step_seconds=one) for power, one in enumerate(seconds)]


def beside(sample_seconds: float | None = 0.01, compare_at: int | None = 32) -> SizeTrial:
    return spec(kind=SizeTrial, compare_at=compare_at, sample_seconds_beside=sample_seconds)


def test_what_takes_more_than_twice_as_long_for_every_further_sample_looks_hopeless() -> None:
    """Seen: compressed activations took 14 to 22 s of 3m30s to be known as 0.12 to 0.24 times as fast."""
    assert looks_hopeless(paced(0.06, 0.11), beside())
    assert not looks_hopeless(paced(0.06, 0.095), beside()), "17 ms instead of 10"
    assert looks_hopeless(paced(0.06, 0.06, 0.16), beside()), "only the last two batches count"


def test_a_long_part_that_no_sample_adds_to_is_no_reason() -> None:
    """A large batch makes up for it: a slow optimizer costs the same there."""
    assert not looks_hopeless(paced(1.0, 1.05), beside())
    assert not looks_hopeless(paced(0.2, 0.26), beside()), "nor is a difference that chance may make"


def test_nothing_looks_hopeless_without_anything_to_compare_with_or_at_its_batch() -> None:
    slow = paced(0.5, 1.0)
    assert looks_hopeless(slow, beside())
    assert not looks_hopeless(slow, beside(sample_seconds=None))
    assert not looks_hopeless(slow, beside(compare_at=None))
    assert not looks_hopeless(slow, beside(compare_at=4)), "it is compared there in any case"
    assert not looks_hopeless(slow[:1], beside())


def test_far_below_the_batch_of_the_comparison_it_takes_more_to_look_hopeless() -> None:
    """Some kernels need more samples than these to use the device."""
    slow = paced(0.06, 0.11)  # 25 ms for a sample, beside 10
    assert looks_hopeless(slow, beside(compare_at=32))
    assert looks_hopeless(slow, beside(compare_at=39))
    assert not looks_hopeless(slow, beside(compare_at=41)), "2.56 times are needed there"
    slower = paced(0.5, 1.0)
    assert looks_hopeless(slower, beside(compare_at=256))
    assert not looks_hopeless(slower, beside(compare_at=257)), "beyond 64 times the batch"
    assert looks_hopeless(paced(0.5, 1.0, 2.0), beside(compare_at=257)), "at 8 samples"


def test_with_instruments_a_step_in_chunks_takes_as_much_longer_as_its_batch_is_larger() -> None:
    """Seen: activations compressed in small chunks took 0.5 s at 512 samples, 2 s with instruments, 37 s at 8,192."""
    points = rising(8, lambda batch: 0.1 * batch)
    trial = spec(kind=SizeTrial, memory_limit_bytes=2**36, measure_seconds=200.0, time_limit_seconds=1000.0)

    def following(instrumented: float, *, in_chunks: bool) -> int | None:
        return next_batch(
            points,
            trial,
            spent=30.0,
            making=0.0,
            instrumented=instrumented,
            predicted_largest=2048.0,
            in_chunks=in_chunks,
        )

    assert following(25.6, in_chunks=True) == 512, "30 + 2 x (25.6 + 25.6) s"
    assert following(75.0, in_chunks=True) is None, "30 + 2 x (75 + 25.6) s"
    assert following(75.0, in_chunks=False) is None, "its time is known"
    quick = rising(3, lambda batch: 0.001)
    assert next_batch(quick, trial, spent=199.0, making=0.0, instrumented=1.5, predicted_largest=math.inf) == 16, (
        "elsewhere the operations are as many at any batch"
    )
