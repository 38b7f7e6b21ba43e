"""The fastest plan within a budget, against all plans of small chains and against cases with known answers."""

from __future__ import annotations

import functools
import itertools
import random

import pytest

from advisor.methods.recompute.optimal_plan import (
    Unit,
    bytes_of_everything,
    evened,
    held_at_most,
    least_plan,
    optimal_plan,
)
from advisor.methods.recompute.plan import Plan, blocks_in
from tests.methods.plans import runs


@functools.cache
def all_plans(start: int, stop: int) -> tuple[Plan, ...]:
    """Every way to run the blocks start..stop-1, in which no run of them is run again for its own sake alone."""
    if start == stop:
        return ((),)
    plans: list[Plan] = [(start, *rest) for rest in all_plans(start + 1, stop)]
    for middle in range(start + 1, stop):
        pairs = itertools.product(all_plans(start, middle), all_plans(middle, stop))
        plans += [(inside, *rest) for inside, rest in pairs]
    return tuple(plans)


def random_chain(seed: int, count: int) -> list[Unit]:
    draw = random.Random(seed)
    return [
        Unit(seconds=draw.uniform(0.5, 2.0), kept=draw.randint(20, 90) * 1000, output=draw.randint(1, 20) * 1000)
        for _ in range(count)
    ]


def alike(count: int, kept: int = 100, output: int = 10) -> list[Unit]:
    return [Unit(seconds=1.0, kept=kept, output=output)] * count


def seconds_again(plan: Plan, units: list[Unit]) -> float:
    """Seconds of the forward passes that a plan adds to those that every step makes."""
    return sum(unit.seconds * (count - 1) for unit, count in zip(units, runs(plan), strict=True))


class TestAgainstAllPlans:
    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.35])
    def test_no_plan_within_the_budget_is_faster(self, seed: int, share: float) -> None:
        units = random_chain(seed, 6)
        budget = int(share * bytes_of_everything(units))
        fitting = [plan for plan in all_plans(0, 6) if held_at_most(plan, units) <= budget]
        found = optimal_plan(units, budget)
        if not fitting:
            assert found is None
            return
        assert found is not None
        assert held_at_most(found, units) <= budget
        fastest = min(seconds_again(plan, units) for plan in fitting)
        # The budget is divided into slots: a plan that misses it by less than their rounding may be taken for another.
        nearly = [plan for plan in fitting if held_at_most(plan, units) <= 0.98 * budget]
        assert fastest - 1e-9 <= seconds_again(found, units)
        assert seconds_again(found, units) <= min((seconds_again(plan, units) for plan in nearly), default=1e9) + 1e-9

    @pytest.mark.parametrize("seed", range(6))
    def test_no_plan_holds_less_than_the_least(self, seed: int) -> None:
        units = random_chain(seed, 6)
        least = min(held_at_most(plan, units) for plan in all_plans(0, 6))
        assert held_at_most(least_plan(units), units) == least
        assert optimal_plan(units, least - 1) is None
        found = optimal_plan(units, least)
        assert found is not None
        assert held_at_most(found, units) == least


class TestKnownCases:
    def test_room_for_everything_means_no_second_run(self) -> None:
        units = random_chain(0, 30)
        plan = optimal_plan(units, bytes_of_everything(units))
        assert plan == tuple(range(30))
        assert runs(plan) == [1] * 30

    def test_a_little_less_room_runs_the_cheapest_block_again(self) -> None:
        units = [*alike(3), Unit(seconds=0.1, kept=100, output=10), *alike(3)]
        plan = optimal_plan(units, 650)
        assert plan is not None
        assert runs(plan) == [1, 1, 1, 2, 1, 1, 1]

    def test_every_block_but_the_last_run_once_more_is_enough_for_their_inputs_and_one_block(self) -> None:
        plan = optimal_plan(alike(10), 9 * 10 + 100)
        assert plan is not None
        assert sum(runs(plan)) <= 10 + 9

    def test_what_is_held_by_hand(self) -> None:
        units = alike(4)
        assert held_at_most((0, 1, 2, 3), units) == 400
        assert held_at_most(((0, 1), (2, 3)), units) == 10 + 200  # One input, and two blocks that run again.
        assert held_at_most(((0,), (1,), (2,), 3), units) == 3 * 10 + 100
        assert held_at_most((((0,), 1), 2, 3), units) == 10 + 200

    def test_nothing_fits_that_is_less_than_one_block(self) -> None:
        assert optimal_plan(alike(5), 99) is None
        assert held_at_most(least_plan(alike(5)), alike(5)) > 100

    def test_outputs_that_take_no_room(self) -> None:
        units = alike(5, output=0)
        assert held_at_most(least_plan(units), units) == 100
        assert optimal_plan(units, 100) is not None

    def test_a_single_block_keeps_everything_or_does_not_fit(self) -> None:
        assert optimal_plan(alike(1), 100) == (0,)
        assert optimal_plan(alike(1), 99) is None

    def test_a_plan_has_every_block_once_and_less_room_never_less_work(self) -> None:
        units = random_chain(1, 40)
        everything = bytes_of_everything(units)
        work = []
        for percent in (90, 60, 40, 25, 15):
            plan = optimal_plan(units, everything * percent // 100)
            assert plan is not None
            assert blocks_in(plan) == list(range(40))
            work.append(seconds_again(plan, units))
        assert work == sorted(work)
        assert work[0] > 0


class TestLongChains:
    def test_a_thousand_blocks_are_planned_in_groups(self) -> None:
        units = alike(1000)
        budget = bytes_of_everything(units) // 4
        plan = optimal_plan(units, budget)
        assert plan is not None
        assert blocks_in(plan) == list(range(1000))
        assert held_at_most(plan, units) <= budget
        assert seconds_again(plan, units) <= 1000  # No block a third time: their inputs are small.


def test_chance_in_the_seconds_decides_no_plan() -> None:
    """The trap: a plan is another one in the run that ships than in the trial that was measured."""
    large, small = Unit(seconds=0.0, kept=400, output=100), Unit(seconds=0.0, kept=200, output=50)

    def plan(chance: float, clock: float) -> Plan | None:
        generator = random.Random(chance)
        units = [
            Unit(seconds * clock * generator.uniform(1.0, 1.04), unit.kept, unit.output)
            for seconds, unit in [(2.6, large)] * 4 + [(1.0, small)] * 6
        ]
        return optimal_plan(evened(units, ["block"] * len(units)), 1400)

    first = plan(0, 1.0)
    assert first is not None
    assert all(plan(chance, clock) == first for chance in range(1, 20) for clock in (0.003, 0.7))


def test_blocks_that_are_alike_take_as_long_as_the_quickest_of_them() -> None:
    units = [Unit(0.011, 400, 100), Unit(0.010, 400, 100), Unit(0.0049, 200, 100), Unit(0.0161, 400, 300)]
    assert [unit.seconds for unit in evened(units, "aaaa")] == [2.0, 2.0, 1.0, 3.25]
    assert [unit.seconds for unit in evened(units, "baaa")] == [2.25, 2.0, 1.0, 3.25], "the first does something else"
    nothing = [Unit(0.0, 400, 100), Unit(1.0, 200, 100)]
    assert evened(nothing, "aa") == nothing
