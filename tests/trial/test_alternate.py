"""Steps of two kinds take turns in one process."""

from __future__ import annotations

import pytest

from advisor.measure.in_turn import TurnPlan
from advisor.trial.worker import alternate
from advisor.trial.worker.alternate import gain_in_turn

PLAN = TurnPlan(min_rounds=2, max_rounds=3, target_spread=0.0, seconds=1000.0)


class Clock:
    """Stands still between steps, and knows who made them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.steps: list[str] = []
        monkeypatch.setattr(alternate.time, "perf_counter", lambda: self.now)

    def larger(self) -> None:
        self.steps.append("larger")
        self.now += 0.8

    def smaller(self) -> None:
        self.steps.append("smaller")
        self.now += 0.5


def test_the_gain_is_in_samples_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    gain, seconds = gain_in_turn(clock.larger, 16, clock.smaller, 8, PLAN)
    assert gain.value == pytest.approx((16 / 0.8) / (8 / 0.5))
    assert gain.low < gain.value < gain.high
    assert clock.steps == ["larger", "smaller"] * 3 + ["larger"]
    assert seconds == pytest.approx([0.8] * 4)


def test_a_step_that_was_made_just_now_is_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    gain, seconds = gain_in_turn(clock.larger, 16, clock.smaller, 8, PLAN, begun=(0.8,))
    assert gain.value == pytest.approx((16 / 0.8) / (8 / 0.5))
    assert clock.steps == ["smaller", "larger"] * 3
    assert seconds == pytest.approx([0.8] * 4)


@pytest.mark.usefixtures("at_usual_speed")
def test_a_short_step_that_was_made_just_now_only_begins_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    _, seconds = gain_in_turn(clock.larger, 16, clock.smaller, 8, PLAN, begun=(0.1,))
    assert clock.steps[0] == "larger"
    assert seconds[:2] == pytest.approx([0.1, 0.8])
