"""The benchmark of idle time measures every schedule, and its page shows formulas beside measurements."""

from __future__ import annotations

import pytest

from benchmarks.pipeline_bubble import Row, formula, measured_rows, page


def row(schedule: str, *seconds: float) -> Row:
    return Row(
        schedule=schedule, ranks=4, micro_batches=8, pass_seconds=0.1, step_seconds=seconds, device="a device",
        date="2026-01-02", versions={"torch": "2"},
    )  # fmt: skip


def test_idle_time_is_what_a_step_takes_beyond_three_passes_of_each_micro_batch() -> None:
    assert row("gpipe", 3.3, 3.0).idle == pytest.approx((3.3 / 2.4 - 1, 0.25))


def test_the_formulas_are_those_of_the_papers() -> None:
    assert formula("gpipe", 4, 8) == formula("1f1b", 4, 8) == 3 / 8
    assert formula("interleaved", 4, 8) == 3 / 16
    assert formula("zero_bubble", 4, 16) == pytest.approx(0.03125)


def test_the_page_shows_the_formula_beside_the_median() -> None:
    text = page([row("1f1b", 3.3, 3.36, 3.6)])
    assert "| 1f1b | 4 | 8 | 40.0% (37.5% to 50.0%) | 37.5% | +2.5% | 4 |" in text
    assert "Measured on a device, 2026-01-02, with torch 2." in text


def test_every_schedule_is_measured() -> None:
    rows = measured_rows(ranks=2, counts=(2,), seconds=0.002, steps=1)
    assert [one.schedule for one in rows] == ["1f1b", "gpipe", "interleaved", "zero_bubble"]
    assert all(idle > 0 for one in rows for idle in one.idle)
