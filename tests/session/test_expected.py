"""What a combination will do at its own batch, from short steps in turn with plain training."""

from __future__ import annotations

import math

import msgspec
import pytest

from advisor.decide.candidate import Comparison
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Sizing
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.sizing.memory_model import MemoryModel
from advisor.session.trials.expected import expected_at
from tests.search.test_memory_model import point, sizing

CHECKPOINT = use("checkpoint", every=1)
PLAIN = sizing(point(2, passes=120, seconds=0.3), point(4, passes=140, seconds=0.5))
"""0.1 s + 0.1 s per sample."""

TWICE = Speedup(value=2.0, low=1.9, high=2.1, rounds=4)


def compared(
    *, fixed: float = 0.05, growing: float = 0.05, speedup: Speedup | None = TWICE, at: int | None = None
) -> Sizing:
    """Profiling runs of a combination whose steps take ``fixed + growing * batch`` seconds."""
    points = [point(batch, passes=100, seconds=fixed + growing * batch) for batch in (2, 4)]
    points[-1] = msgspec.structs.replace(points[-1], speedup=speedup, compared_at=at)
    return sizing(*points)


def expected(own: Sizing, *, batch: int, passes: int = 1, model: MemoryModel | None = None) -> Comparison:
    policy = Policy(methods=(CHECKPOINT,), micro_batch=batch, accumulation_steps=passes)
    return expected_at(policy, own, PLAIN, model or MemoryModel.fit(PLAIN))


def test_plain_training_is_expected_to_do_what_its_own_model_says() -> None:
    found = expected_at(Policy(micro_batch=9), PLAIN, PLAIN, MemoryModel.fit(PLAIN))
    assert found.speedup is None, "nothing took turns with itself"
    assert found.expected_samples_per_second == pytest.approx(9 / 1.0)
    assert (found.micro_batch, found.at_batch) == (4, 9)


def test_at_the_batch_of_the_comparison_the_speedup_is_carried_over_exactly() -> None:
    found = expected(compared(fixed=0.3, growing=0.01), batch=4)
    assert found.speedup == TWICE
    assert found.expected_samples_per_second == pytest.approx(2 * 4 / 0.5)
    further = expected(compared(fixed=0.3, growing=0.01, at=32), batch=32)
    assert further.expected_samples_per_second == pytest.approx(2 * 32 / 3.3), "wherever that was"
    assert (further.micro_batch, further.at_batch) == (32, 32)


def test_what_plain_training_did_in_a_timed_trial_is_known_better_than_from_profiling_runs() -> None:
    slower = MemoryModel.fit(PLAIN).timed(4, 1, 1.0)
    assert expected(compared(), batch=4, model=slower).expected_samples_per_second == pytest.approx(2 * 4 / 1.0)


def test_passes_cost_plain_training_as_much_as_they_are() -> None:
    one, four = (expected(compared(), batch=4, passes=passes) for passes in (1, 4))
    assert four.expected_samples_per_second == pytest.approx(one.expected_samples_per_second)


def test_a_combination_whose_lines_run_parallel_keeps_its_speedup_at_every_batch() -> None:
    for batch in (1, 4, 64):
        plain_rate = batch / (0.1 + 0.1 * batch)
        assert expected(compared(), batch=batch).expected_samples_per_second == pytest.approx(2 * plain_rate)


def test_what_the_lines_say_of_the_next_batch_is_believed_in_part_and_doubted() -> None:
    """By its line it becomes faster beside plain training: from as fast at 4 samples to an eighth faster at 8."""
    found = expected(compared(fixed=0.2, growing=0.075), batch=8)
    rate = 2 * 8 / 0.9
    assert rate < found.expected_samples_per_second < rate * 0.9 / 0.8
    assert found.expected_error > expected(compared(fixed=0.2, growing=0.075), batch=4).expected_error


def test_two_small_batches_say_little_of_a_large_one() -> None:
    """Trap: steps of 2 and 4 samples promised 1.28 times the leader at 32, where 0.85 times was measured."""
    fixed, growing = 0.2, 0.075
    shares = []
    for batch in (8, 16, 32, 64):
        rate = 2 * batch / (0.1 + 0.1 * batch)
        by_lines = math.log((0.1 + 0.1 * batch) / (fixed + growing * batch))
        found = expected(compared(fixed=fixed, growing=growing), batch=batch)
        shares.append(math.log(found.expected_samples_per_second / rate) / by_lines)
    assert min(shares) > 0
    assert max(shares) < 1 / 3


def test_a_line_that_misses_what_is_known_of_plain_training_is_not_believed() -> None:
    """Both were measured while the machine was slower at one of the batches."""
    own = compared(fixed=0.2, growing=0.075)
    as_drawn, missed = (MemoryModel.fit(PLAIN).timed(batch, 1, seconds) for batch, seconds in ((16, 1.7), (16, 1.0)))
    believed, doubted = (
        expected(own, batch=16, model=model).expected_samples_per_second * model.seconds(16) / (2 * 16)
        for model in (as_drawn, missed)
    )
    assert believed > 1.01 * doubted >= 1.0


def test_no_line_promises_more_than_the_batch_grows() -> None:
    """By its line, which falls, it would be much more than sixteen times as fast at 64 samples as at 4."""
    found = expected(compared(fixed=1.0, growing=-0.015), batch=64)
    assert 2 * 64 / 6.5 < found.expected_samples_per_second < 2 * (64 / 4) * 64 / 6.5


def test_the_line_goes_through_the_comparison_where_that_was_well_above_the_profiling_runs() -> None:
    """Trap: its line fell from 2 to 4 samples by chance, and 316 samples/s were promised where 176 are possible."""
    noisy = compared(fixed=0.2, growing=-0.01, at=40)
    found = expected(noisy, batch=256)
    through = 0.16, 4.1 / 2  # seconds at 4 samples, and at 40 by the speedup
    slope = (through[1] - through[0]) / 36
    growth = math.log(25.7 / (through[1] + slope * 216)) - math.log(2)
    assert abs(growth) < 0.05
    assert found.expected_samples_per_second == pytest.approx(2 * 256 / 25.7, rel=abs(growth))


def test_a_falling_line_of_plain_training_is_not_believed() -> None:
    falling = sizing(point(2, passes=120, seconds=0.6), point(4, passes=140, seconds=0.5))
    found = expected_at(Policy(micro_batch=16), falling, falling, MemoryModel.fit(falling))
    assert found.expected_samples_per_second == pytest.approx(16 / (0.5 * math.sqrt(16 / 4)))


def test_without_turns_the_profiling_runs_speak_with_a_larger_error() -> None:
    """Plain training's 0.5 s over its own 0.25 s."""
    unpaired, paired = expected(compared(speedup=None), batch=4), expected(compared(), batch=4)
    assert unpaired.speedup is None
    assert unpaired.expected_samples_per_second == pytest.approx(paired.expected_samples_per_second)
    assert unpaired.expected_error > 2 * paired.expected_error


def test_a_surer_comparison_makes_a_surer_forecast_and_none_is_perfect() -> None:
    sure = Speedup(value=2.0, low=2.0, high=2.0, rounds=100)
    assert expected(compared(speedup=sure), batch=4).expected_error > 0
    assert expected(compared(speedup=sure), batch=4).expected_error < expected(compared(), batch=4).expected_error


@pytest.mark.parametrize("own", [PLAIN, compared()], ids=["plain", "compared"])
def test_forecasts_beyond_what_was_timed_are_doubted_for_every_doubling(own: Sizing) -> None:
    errors = [expected(own, batch=batch).expected_error for batch in (4, 8, 64)]
    assert errors[2] > errors[1] > errors[0]
    timed = MemoryModel.fit(PLAIN).timed(64, 1, 6.5)
    assert errors[0] <= expected(own, batch=64, model=timed).expected_error < errors[2], "plain training is known there"
