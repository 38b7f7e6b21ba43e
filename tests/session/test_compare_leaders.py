"""On several devices the leaders are compared in turn before one is recommended."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from advisor.decide.candidate import Candidate
from advisor.decide.noise import noise_between
from advisor.decide.ranking import noise_of_lead, ranked
from advisor.goal import Goal, GoalKind
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.propose.standing import JointStanding, Standing
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.compare_leaders import compare_leaders
from advisor.session.context import StudyContext
from advisor.session.tuning import Tuning
from advisor.trial.outcome import Outcome
from advisor.trial.result import PairResult
from advisor.trial.spec import PairTrial
from tests.decide.examples import goal, measured
from tests.session.contexts import study

DDP = use("ddp", bucket_views=True, static_graph=False)
BYTES = 2**20


def leader(rate: float, every: int, *, batch: int = 64, count: int = 2) -> Candidate:
    policy = Policy(methods=(use("checkpoint", every=every), DDP), micro_batch=batch, gpu_count=count)
    return msgspec.structs.replace(measured(rate), policy=policy)


class Machine:
    """Compares pairs as fast as they truly are; half of a leader's memory is held between its steps."""

    def __init__(self, true_rates: dict[int, float], *, ends: Outcome = Outcome.OK) -> None:
        self.turns = type("Turns", (), {"wanted": False})()
        self.true_rates = true_rates
        self.ends = ends
        self.compared: list[tuple[Policy, Policy]] = []
        self.repeats: list[int] = []

    def model_of(self, combination: Combination) -> MemoryModel:
        return MemoryModel(lines=(Line(64.0 * BYTES, 1.0 * BYTES),), time=Line(0.0, 1.0))

    def pair(self, policy: Policy, *, beside: Policy, repeat: int, **asked: Any) -> PairResult:
        self.compared.append((policy, beside))
        assert "target_spread" not in asked, "leaders are told apart to the percent that a trial measures by default"
        self.repeats.append(repeat)
        ratio = self.rate(policy) / self.rate(beside)
        speedup = Speedup(value=ratio, low=0.98 * ratio, high=1.02 * ratio, rounds=8)
        return PairResult(key="pair", outcome=self.ends, speedup=speedup if self.ends is Outcome.OK else None)

    def rate(self, policy: Policy) -> float:
        return self.true_rates[int(policy.methods[0].parameters["every"])]


class Thinker:
    """A model that knows each leader's measurement up to 3 %."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self.rates = {Combination.of(one.policy).label: one.samples_per_second for one in candidates}

    def standings(self) -> dict[str, Standing]:
        return {label: Standing(mean=-math.log(rate), deviation=0.03) for label, rate in self.rates.items()}

    def joint_standing(self, points: list[tuple[Combination, int]]) -> JointStanding:
        labels = [one.label for one, _ in points]
        same = np.array([[one == other for other in labels] for one in labels], dtype=np.float64)
        return JointStanding(
            mean=np.array([-math.log(self.rates[label]) for label in labels]), covariance=0.03**2 * same
        )


def compared(
    candidates: list[Candidate], machine: Machine, *, aim: Goal | None = None, **others: Any
) -> tuple[StudyContext, dict[str, Standing]]:
    aim = goal() if aim is None else aim
    context = study(aim, candidates=candidates, **others)
    return context, compare_leaders(context, machine, Thinker(candidates))  # type: ignore[arg-type]


def first(context: StudyContext) -> int:
    best = max(context.ledger.candidates, key=lambda one: one.samples_per_second)
    return int(best.policy.methods[0].parameters["every"])


LUCKY = [leader(103, 1), leader(100, 2), leader(60, 4)]
TRUTH = {1: 98.0, 2: 101.0, 4: 60.0}


def test_a_lucky_leader_gives_way_to_the_one_that_is_faster_in_turn() -> None:
    machine = Machine(TRUTH)
    context, found = compared(LUCKY, machine)
    assert first(context) == 2
    assert min(found, key=lambda label: found[label].mean) == Combination.of(LUCKY[1].policy).label
    one, other = context.ledger.candidates[:2]
    assert one.samples_per_second / other.samples_per_second == pytest.approx(98 / 101, rel=0.01)
    assert one.measurement is not None
    assert one.measurement.step_seconds_low < one.measurement.step_seconds < one.measurement.step_seconds_high
    rate = one.policy.global_batch / one.measurement.step_seconds
    assert rate / one.samples_per_second == pytest.approx(
        LUCKY[0].policy.global_batch / (LUCKY[0].measurement.step_seconds * 103)  # type: ignore[union-attr]
    )


def test_of_leaders_whose_ratio_is_known_the_faster_one_is_chosen_though_it_has_more_methods() -> None:
    """The trap: each one's own uncertainty, which they share, made a tie of what its comparisons had told apart."""
    simple = msgspec.structs.replace(measured(100), policy=Policy(methods=(DDP,), micro_batch=64, gpu_count=2))
    faster = leader(100, 2)

    class Both(Machine):
        def rate(self, policy: Policy) -> float:
            return 100.0 if len(policy.methods) == 1 else 105.0

    context, _ = compared([simple, faster], Both({}))
    assert len(context.ledger.candidates) == 2
    spreads = [one.measured.relative_spread for one in context.ledger.candidates]
    assert min(spreads) > 0.025, "of each alone"
    chosen = ranked(context.ledger.candidates, context.goal)
    assert noise_of_lead(*chosen.eligible) < 0.03 < noise_between(*(one.measured for one in chosen.eligible))


def test_only_those_that_may_be_the_best_are_compared_each_time_anew() -> None:
    machine = Machine(TRUTH)
    compared(LUCKY, machine)
    assert {int(one.methods[0].parameters["every"]) for pair in machine.compared for one in pair} == {1, 2}
    assert 1 <= len(machine.compared) < 20
    assert machine.repeats == list(range(len(machine.compared)))


def test_batches_shrink_by_what_the_other_one_holds() -> None:
    machine = Machine(TRUTH)
    compared(LUCKY, machine, usable_bytes=(64 + 64 + 48) * BYTES)
    assert {one.micro_batch for pair in machine.compared for one in pair} == {48}


def test_nothing_is_compared_without_room_or_on_different_numbers_of_devices() -> None:
    for candidates, room in ((LUCKY, 130 * BYTES), ([leader(103, 1), leader(100, 2, count=4)], 2**40)):
        machine = Machine(TRUTH)
        context, found = compared(candidates, machine, usable_bytes=room)
        assert (machine.compared, found) == ([], {})
        assert list(context.ledger.candidates) == candidates


def test_a_pair_that_fails_is_not_tried_again_and_changes_nothing() -> None:
    machine = Machine(TRUTH, ends=Outcome.OUT_OF_MEMORY)
    context, found = compared(LUCKY, machine)
    assert found == {}
    assert len(machine.compared) == len({(one.key, other.key) for one, other in machine.compared})
    assert list(context.ledger.candidates) == LUCKY


def test_nothing_is_compared_where_leaders_alternated_already_or_time_is_up() -> None:
    on_one = Machine(TRUTH)
    on_one.turns.wanted = True
    late, other_goal = Machine(TRUTH), Machine(TRUTH)
    compared(LUCKY, on_one)
    compared(LUCKY, late, seconds=0.0)
    compared(LUCKY, other_goal, aim=goal(kind=GoalKind.CHEAPEST))
    assert [machine.compared for machine in (on_one, late, other_goal)] == [[], [], []]


def test_the_other_batch_of_a_leader_changes_with_it() -> None:
    """Both were timed in one process, which was lucky."""
    half = leader(102, 1, batch=32)
    context, _ = compared([*LUCKY, half], Machine(TRUTH))
    rates = [one.samples_per_second for one in context.ledger.candidates]
    assert rates[3] / rates[0] == pytest.approx(102 / 103)
    assert first(context) == 2


def test_an_answer_says_how_long_comparing_leaders_took() -> None:
    tuning = SimpleNamespace(preparation=SimpleNamespace(budget=SimpleNamespace(elapsed_seconds=6.0)))
    timings = Tuning._timings(tuning, SimpleNamespace(spent={PairTrial: [2.0, 3.0]}))  # type: ignore[arg-type]
    assert timings == {"comparing leaders (2 trials)": 5.0, "momadvise itself": 1.0}
