"""All arms are compared with the unmodified file, and the advice with the best of the set."""

from __future__ import annotations

import pytest

from benchmarks.minutes.contest import Contest, Found
from benchmarks.minutes.settings import ADVICE, REFERENCE_SET, UNTOUCHED, Setting
from benchmarks.minutes.turns import Pacing

from .examples import FakeStarter, Machine

TWO, FOUR = REFERENCE_SET[:2]
PACING = Pacing(least_rounds=6)


def held(machine: Machine, rates: dict[str, float | str], *settings: Setting, advised: bool = True) -> Found:
    starter = FakeStarter(machine, {UNTOUCHED.name: 10.0} | rates)
    return Contest(starter, settings or (TWO, FOUR), PACING).measured(advised=advised)


def test_every_arm_is_compared_with_the_unmodified_file_the_advice_first() -> None:
    found = held(Machine(), {ADVICE: 16.0, TWO.name: 12.0, FOUR.name: 15.0})
    assert [one.name for one in found.arms] == [ADVICE, TWO.name, FOUR.name]
    assert [one.beside.ratio for one in found.arms if one.beside] == pytest.approx([1.6, 1.2, 1.5])
    assert [one.batch for one in found.arms] == [4, 8, 16]


def test_the_advice_is_compared_with_the_best_of_the_set_last() -> None:
    machine = Machine()
    found = held(machine, {ADVICE: 16.0, TWO.name: 12.0, FOUR.name: 15.0})
    assert found.best == FOUR.name
    assert found.advice_beside_best is not None
    assert found.advice_beside_best.ratio == pytest.approx(16 / 15)
    assert machine.started[-2:] == [ADVICE, FOUR.name]


def test_if_two_may_be_the_best_the_advice_is_compared_with_both_and_the_worse_counts() -> None:
    machine = Machine(1.0, 1.2, 0.9, 1.0, 1.1)
    found = held(machine, {ADVICE: 16.0, TWO.name: 15.1, FOUR.name: 15.0})
    assert sorted(machine.started[-4:]) == sorted([ADVICE, ADVICE, TWO.name, FOUR.name])
    assert found.best in (TWO.name, FOUR.name)
    clear = Machine(1.0, 1.2, 0.9, 1.0, 1.1)
    held(clear, {ADVICE: 16.0, TWO.name: 5.0, FOUR.name: 15.0})
    assert clear.started[-2:] == [ADVICE, FOUR.name]
    assert len(machine.started) == len(clear.started) + 2


def test_at_most_two_arms_are_alive_and_each_comparison_has_new_processes() -> None:
    machine = Machine()
    held(machine, {ADVICE: 16.0, TWO.name: 12.0, FOUR.name: 15.0})
    assert machine.most_alive == 2
    assert not machine.alive
    assert machine.started.count(UNTOUCHED.name) == 3


def test_if_all_settings_are_slower_the_unmodified_file_is_the_best_of_the_set() -> None:
    found = held(Machine(), {ADVICE: 10.0, TWO.name: 8.0, FOUR.name: 7.0})
    assert found.best == UNTOUCHED.name
    assert found.advice_beside_best == found.arms[0].beside


def test_an_arm_that_cannot_train_is_a_row_with_its_reason() -> None:
    found = held(Machine(), {ADVICE: 16.0, TWO.name: "not native", FOUR.name: 15.0})
    assert [(one.beside is None, one.reason) for one in found.arms] == [(False, ""), (True, "not native"), (False, "")]
    assert found.best == FOUR.name


def test_without_advice_the_set_is_still_measured() -> None:
    for advised, rates in ((False, {}), (True, {ADVICE: "no such method"})):
        found = held(Machine(), {TWO.name: 12.0, FOUR.name: 15.0, **rates}, advised=advised)
        assert found.best == FOUR.name
        assert found.advice_beside_best is None
        assert found.reason == "the advice has no figure"


def test_if_the_unmodified_file_does_not_train_nothing_is_measured() -> None:
    found = held(Machine(), {UNTOUCHED.name: "it is broken", ADVICE: 16.0, TWO.name: 12.0, FOUR.name: 15.0})
    assert (found.best, found.reason) == (None, "no arm has a figure")
    assert {one.reason for one in found.arms} == {"it is broken"}
