"""Waiting for an idle machine: what is said, when it ends, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from advisor.hardware.contention import Load
from advisor.measure.in_turn import Speedup
from advisor.report.progress import Progress
from advisor.session.budget import TimeBudget
from advisor.session.setup import wait_idle
from advisor.session.setup.wait_idle import wait_as_asked, wait_until_idle
from advisor.session.tune import _searched_enough
from tests.decide.examples import goal
from tests.methods.tiny import cpu
from tests.report.scenario import CONFIRMED, answered, recommendation
from tests.session.contexts import study
from tests.session.test_budget import Clock

IDLE, BUSY = Load(0.0, 2), Load(1.9, 2, names=("cc1plus 98%",))


class Told(Progress):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.seconds = 0.0

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def waited(self, seconds: float) -> None:
        self.seconds += seconds


class Machine:
    """One load after the other, a second each."""

    def __init__(self, *loads: Load) -> None:
        self.clock, self.told = Clock(), Told()
        self.loads: Iterator[Load] = iter(loads)
        self.begin = self.clock.now

    def look(self) -> Load:
        self.clock.now += 1.0
        return next(self.loads)

    def wait(self, limit: float) -> str | None:
        return wait_until_idle(limit, self.look, self.told, clock=self.clock)

    @property
    def seconds(self) -> float:
        return self.clock.now - self.begin


def test_an_idle_machine_is_looked_at_twice_and_nothing_is_said() -> None:
    machine = Machine(IDLE, IDLE)
    assert machine.wait(600) is None
    assert machine.told.stages == []


def test_it_waits_until_others_have_been_idle_twice_in_a_row_and_says_for_what_now_and_then() -> None:
    machine = Machine(*[BUSY] * 40, IDLE, BUSY, IDLE, IDLE)
    assert machine.wait(600) is None
    assert machine.seconds == 44
    assert machine.told.stages == [
        f"waiting until the machine is idle, for {left} at most: {BUSY.words}" for left in ("9m59s", "9m29s")
    ]


def test_after_its_limit_it_goes_on_with_a_note() -> None:
    machine = Machine(*[BUSY] * 20)
    assert machine.wait(10) == (
        "the machine was not idle after 10s, and was measured all the same: "
        "other processes keep 1.9 of 2 cores busy (cc1plus 98%)"
    )


def test_an_interruption_ends_it_at_once() -> None:
    machine = Machine(BUSY)

    def interrupted() -> Load:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_until_idle(600, interrupted, machine.told, clock=machine.clock)


def test_waiting_does_not_count_against_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(), Told()
    budget = TimeBudget(100.0, clock)

    def waited(*_: object) -> str:
        clock.now += 500.0
        return "busy"

    monkeypatch.setattr(wait_idle, "wait_until_idle", waited)
    clock.now += 10.0
    assert wait_as_asked(None, cpu(), goal(), budget, told) == []
    assert wait_as_asked(600.0, cpu(), goal(), budget, told) == ["busy"]
    assert budget.remaining_seconds == 90.0
    assert told.seconds >= 0.0


@pytest.mark.parametrize("wait", [None, 600.0])
@pytest.mark.parametrize("noise", [0.1, 0.001])
def test_an_answer_that_was_not_reproducible_is_measured_further_by_who_waits_for_an_idle_machine(
    wait: float | None, noise: float
) -> None:
    confirmation = msgspec.structs.replace(CONFIRMED, noise=noise)
    stored = answered(recommendation(confirmation=confirmation), goal())
    request = msgspec.structs.replace(study(trials=10).request, time_limit_seconds=100.0, wait_idle_seconds=wait)
    assert _searched_enough(stored, request) is (confirmation.as_promised or wait is None)
    assert confirmation.as_promised is (noise == 0.1)


@pytest.mark.parametrize("wait", [None, 600.0])
@pytest.mark.parametrize("low", [2.0, 5.0])
def test_so_is_one_whose_promise_is_too_unsteady_to_say_much(wait: float | None, low: float) -> None:
    promise = Speedup(value=5.2, low=low, high=9.0, rounds=7)
    confirmation = msgspec.structs.replace(CONFIRMED, speedup=promise, promise=promise)
    stored = answered(recommendation(confirmation=confirmation), goal())
    request = msgspec.structs.replace(study(trials=10).request, time_limit_seconds=100.0, wait_idle_seconds=wait)
    assert _searched_enough(stored, request) is (low == 5.0 or wait is None)
