"""Each new leader takes turns with what differs from it in one method, without a trial of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate
from advisor.goal import Goal, GoalKind
from advisor.hardware.mesh import MeshAxis
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.search.propose.proposal import InTurn
from advisor.search.propose.standing import Standing
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Axis, Combination
from advisor.session.compare_neighbours import Neighbours
from advisor.session.context import StudyContext
from advisor.session.trials.pairs import compares_pairs
from advisor.trial.outcome import Outcome
from advisor.trial.result import PairResult
from tests.decide.examples import goal, measured
from tests.session.contexts import SPACE, study
from tests.session.test_budget import Clock

MIB = 2**20
DDP = use("ddp", bucket_views=True, static_graph=False)
BF16, FUSED, CHECKPOINT = use("precision", dtype="bf16"), use("fused_optimizer"), use("checkpoint", every=1)
METHODS = [Axis(method=one.name, settings=(one,)) for one in (CHECKPOINT, FUSED, BF16)]
TWO = msgspec.structs.replace(
    SPACE, axes=(*METHODS, Axis(method="ddp", settings=(DDP,), divides=MeshAxis.DATA)), gpu_counts=(2,)
)


def on_two(*settings: MethodSetting) -> Combination:
    return Combination(tuple(sorted((*settings, DDP), key=lambda one: one.name)), 2)


PLAIN, LEADER = on_two(), on_two(FUSED)
WITH_BF16, WITH_CHECKPOINT = on_two(BF16, FUSED), on_two(CHECKPOINT, FUSED)


class Machine:
    """Pairs take ``seconds`` each and show that bf16 doubles throughput and checkpointing halves it.

    Args:
        clock: Goes on.
        seconds: Of a comparison.
        known: Combinations that were timed.
        ends: How comparisons end.
    """

    def __init__(
        self, clock: Clock, *, seconds: float = 4.0, known: tuple[Combination, ...] = (PLAIN, LEADER), **ends: Outcome
    ) -> None:
        self.turns = type("Turns", (), {"wanted": False})()
        self.clock, self.seconds = clock, seconds
        self.known = {one.label for one in known}
        self.ends = ends
        self.compared: list[tuple[Policy, Policy]] = []
        self.asked: list[dict[str, Any]] = []

    def sizing_of(self, combination: Combination) -> None:
        return None

    def model_of(self, combination: Combination) -> MemoryModel | None:
        if combination.label not in self.known:
            return None
        return MemoryModel(
            lines=(Line(64.0 * MIB, (1.0 if FUSED in combination.settings else 2.0) * MIB),), time=Line(0.0, 1.0)
        )

    def pair(self, policy: Policy, *, beside: Policy, **asked: Any) -> PairResult:
        self.compared.append((policy, beside))
        self.asked.append(asked)
        self.clock.now += self.seconds
        if ended := self.ends.get(Combination.of(beside).settings[0].name):
            return PairResult(key="pair", outcome=ended)
        ratio = 1 / (2.0 if BF16 in beside.methods else 0.5)
        return PairResult(
            key="pair", outcome=Outcome.OK, speedup=Speedup(value=ratio, low=0.98 * ratio, high=1.02 * ratio, rounds=8)
        )


class Model:
    """Knows the leader, expects most of bf16, and remembers what it learns.

    Args:
        compared: Labels of what was compared before.
        of_checkpointing: The expected log of its cost beside the leader's, to 0.1.
        unknown: What it would learn from.
    """

    def __init__(self, *compared: str, of_checkpointing: float = 0.0, unknown: tuple[Combination, ...] = ()) -> None:
        self.compared = set(compared)
        self.unknown = unknown
        self._of_checkpointing = of_checkpointing
        self.learned: list[tuple[Combination, float, InTurn]] = []

    def standings(self, others: Iterable[Combination] = ()) -> dict[str, Standing]:
        more = {WITH_BF16.label: -1.0, WITH_CHECKPOINT.label: self._of_checkpointing}
        return {
            PLAIN.label: Standing(mean=-math.log(50.0), deviation=0.02),
            LEADER.label: Standing(mean=-math.log(100.0), deviation=0.02),
            **{
                one.label: Standing(mean=-math.log(100.0) + more.get(one.label, 0.0), deviation=0.1)
                for one in others
                if one not in (PLAIN, LEADER)
            },
        }

    def explorers(
        self, leader: Combination, *, most: int, least: float, allowed: Callable[[Combination], bool]
    ) -> list[Combination]:
        assert (leader, most, least) == (LEADER, 10, 0.001)
        return [one for one in self.unknown if allowed(one)]

    def learn(self, combination: Combination, value: float, attributes: Any, *, noise: float, beside: InTurn) -> None:
        assert 0 < noise < 0.1
        self.learned.append((combination, value, beside))


def candidate(rate: float, combination: Combination) -> Candidate:
    return msgspec.structs.replace(measured(rate), policy=combination.policy(64))


TRIED = [candidate(50.0, PLAIN), candidate(100.0, LEADER)]


def compared(machine: Machine, model: Model, *, trials: int = 6, **others: Any) -> Neighbours:
    context = study(candidates=TRIED, **{"space": TWO, **others})
    context.budget.durations.trial_seconds += [20.0] * trials
    found = Neighbours(context, machine, model, clock=machine.clock)  # type: ignore[arg-type]
    found.compare(trials)
    return found


def beside(machine: Machine) -> list[str]:
    return [Combination.of(other).label for _, other in machine.compared]


def test_the_leader_takes_turns_with_one_method_more_or_fewer_most_promising_first() -> None:
    machine, model = Machine(Clock()), Model()
    found = compared(machine, model)
    assert beside(machine) == [WITH_BF16.label, WITH_CHECKPOINT.label], "plain training was timed"
    assert {Combination.of(one).label for one, _ in machine.compared} == {LEADER.label}
    assert found.notes == ["2 combinations one method away from a leader took turns with it, which guided the search"]


@pytest.mark.parametrize(("slower", "is_compared"), [(0.09, True), (0.11, False)])
def test_what_is_slower_by_more_than_the_model_is_unsure_of_takes_no_turns(slower: float, is_compared: bool) -> None:
    machine = Machine(Clock())
    compared(machine, Model(of_checkpointing=slower))
    assert (WITH_CHECKPOINT.label in beside(machine)) == is_compared


def test_the_search_learns_the_ratio_and_what_it_was_beside() -> None:
    model = Model()
    compared(Machine(Clock()), model)
    (first, value, turn), (second, _, _) = model.learned
    assert (first, second) == (WITH_BF16, WITH_CHECKPOINT)
    assert value == pytest.approx(200.0), "twice the leader's"
    assert (turn.combination, turn.micro_batch) == (LEADER, 64)
    assert turn.ratio == pytest.approx(2.0)


def test_ratios_that_guide_the_search_are_measured_to_three_percent() -> None:
    """The trap: knowing each ratio to a percent took nearly as long as a trial, so that after two no more were made."""
    machine = Machine(Clock())
    compared(machine, Model())
    assert [one["target_spread"] for one in machine.asked] == [0.03] * 2


def test_nothing_is_compared_before_the_recipes_have_led_or_twice() -> None:
    early, again = Machine(Clock()), Machine(Clock())
    compared(early, Model(), trials=5)
    compared(again, Model(WITH_BF16.label))
    assert beside(early) == []
    assert beside(again) == [WITH_CHECKPOINT.label], "an earlier run of the study has learned of the other"


ALL, WITHOUT = on_two(BF16, CHECKPOINT, FUSED), on_two(BF16, CHECKPOINT)


def test_after_its_neighbours_the_leader_takes_turns_with_pairs_of_settings_that_nothing_is_known_of() -> None:
    machine, model = Machine(Clock()), Model(unknown=(ALL, WITHOUT))
    found = compared(machine, model, trials=12)
    assert beside(machine) == [WITH_BF16.label, WITH_CHECKPOINT.label, ALL.label, WITHOUT.label]
    assert [one for one, _, _ in model.learned] == [WITH_BF16, WITH_CHECKPOINT, ALL, WITHOUT]
    assert found.notes == [
        "2 combinations one method away from a leader took turns with it, which guided the search",
        "2 combinations took turns with a leader to learn how methods act together, which guided the search",
    ]
    found.compare(13)
    assert len(machine.compared) == 4, "each once"


COMPILE = use("compile", scope="model")
COMPILING = msgspec.structs.replace(TWO, axes=(*TWO.axes, Axis(method="compile", settings=(COMPILE,))))


def test_what_was_timed_or_compiles_at_length_is_not_compared_for_what_it_may_teach() -> None:
    slow, timed = on_two(BF16, CHECKPOINT, COMPILE), on_two(CHECKPOINT)
    machine = Machine(Clock(), known=(PLAIN, LEADER, timed))
    compared(machine, Model(unknown=(slow, timed, ALL)), trials=12, space=COMPILING)
    assert ALL.label in beside(machine)
    assert not {slow.label, timed.label} & set(beside(machine))


def test_a_neighbour_that_compiles_is_left_to_a_trial() -> None:
    """The trap: one compilation of 30 s made comparisons look slower than trials, and no more were made."""
    machine = Machine(Clock())
    compared(machine, Model(), space=COMPILING)
    assert beside(machine) == [WITH_BF16.label, WITH_CHECKPOINT.label]


def test_comparisons_to_learn_from_end_with_the_time_of_comparisons() -> None:
    machine = Machine(Clock(), seconds=15.0)
    compared(machine, Model(unknown=(ALL, WITHOUT)))
    assert beside(machine) == [WITH_BF16.label, WITH_CHECKPOINT.label]


def test_a_failed_comparison_of_several_changes_blames_none_of_them_and_three_end_such_comparisons() -> None:
    more = [use("adam_8bit"), use("muon"), use("channels_last")]
    wide = msgspec.structs.replace(TWO, axes=(*TWO.axes, *(Axis(method=one.name, settings=(one,)) for one in more)))
    several = [on_two(BF16, CHECKPOINT, one) for one in more]
    ends = {
        "adam_8bit": Outcome.CRASHED,
        "channels_last": Outcome.CRASHED,
        "muon": Outcome.OK,
        "checkpoint": Outcome.CRASHED,
    }
    machine, model = Machine(Clock(), seconds=1.0, **ends), Model(unknown=(WITHOUT, *several))
    found = compared(machine, model, trials=12, space=wide)
    assert {WITHOUT.label, *(one.label for one in several)} & set(beside(machine)) == set(), "checkpointing was refused"
    found.compare(13)
    assert [one for one, _, _ in model.learned if one in several] == []


def test_a_method_that_a_combination_lacks_does_not_save_its_memory() -> None:
    """The trap: one with three methods of two others was taken to need what the leader's one method left."""
    machine = Machine(Clock())
    compared(machine, Model(unknown=(on_two(BF16, CHECKPOINT),)), trials=12, usable_bytes=(2 * 64 + 2 * 64) * MIB)
    assert [one.micro_batch for pair in machine.compared[-1:] for one in pair] == [64, 64]
    tight = Machine(Clock())
    compared(tight, Model(unknown=(on_two(BF16, CHECKPOINT),)), trials=12, usable_bytes=(2 * 64 + 64) * MIB)
    assert {one.micro_batch for pair in tight.compared[:2] for one in pair} == {64}, "with a method more: as the leader"
    assert {one.micro_batch for one in tight.compared[-1]} == {32}, "without the leader's: as plain training"


def test_a_new_leader_has_neighbours_of_its_own() -> None:
    machine, model = Machine(Clock()), Model()
    found = compared(machine, model)
    found.compare(7)
    assert len(machine.compared) == 2, "the same leader"


@pytest.mark.parametrize(("seconds", "number"), [(4.0, 2), (15.0, 2), (40.0, 1), (70.0, 1)])
def test_comparisons_take_at_most_half_of_the_time_of_the_trials(seconds: float, number: int) -> None:
    """Six trials took 120 s. Whether there is time for another one is told from those before."""
    machine = Machine(Clock(), seconds=seconds)
    compared(machine, Model())
    assert len(machine.compared) == number


def test_how_long_leaders_that_compile_took_says_nothing_of_others() -> None:
    machine = Machine(Clock())
    context = study(candidates=TRIED, space=TWO)
    context.budget.durations.trial_seconds += [20.0] * 12
    found = Neighbours(context, machine, Model(), clock=machine.clock)  # type: ignore[arg-type]
    found._seconds[True] += [15.0, 15.0]
    found.compare(12)
    assert beside(machine) == [WITH_BF16.label, WITH_CHECKPOINT.label]


def test_where_a_comparison_takes_more_than_half_of_a_trials_time_two_are_enough() -> None:
    machine = Machine(Clock(), seconds=15.0)
    more = (use("adam_8bit"), use("muon"))
    wide = msgspec.structs.replace(TWO, axes=(*TWO.axes, *(Axis(method=one.name, settings=(one,)) for one in more)))
    compared(machine, Model(), trials=12, space=wide)
    assert len(machine.compared) == 2


def test_batches_leave_room_for_both_and_an_untried_one_is_taken_to_need_what_the_leader_does() -> None:
    machine = Machine(Clock())
    compared(machine, Model(), usable_bytes=(64 + 64 + 48) * MIB)
    assert {one.micro_batch for pair in machine.compared for one in pair} == {48}


def test_without_knowing_how_much_it_may_need_nothing_is_compared() -> None:
    machine = Machine(Clock(), known=(PLAIN,))
    compared(machine, Model())
    assert machine.compared == []


def test_a_method_that_could_not_take_turns_is_not_tried_at_its_other_settings() -> None:
    """The trap: threads and the allocator are the process's, and each attempt costs a start."""
    every_second = use("checkpoint", every=2)
    both = Axis(method="checkpoint", settings=(CHECKPOINT, every_second))
    space = msgspec.structs.replace(TWO, axes=(both, *TWO.axes[1:]))
    machine, model = Machine(Clock(), checkpoint=Outcome.CRASHED), Model()
    compared(machine, model, trials=12, space=space)
    assert [one for one in beside(machine) if "checkpoint" in one] == [WITH_CHECKPOINT.label]
    assert [one for one, _, _ in model.learned] == [WITH_BF16]


def test_one_that_fails_teaches_nothing_and_is_not_tried_again() -> None:
    machine, model = Machine(Clock(), checkpoint=Outcome.OUT_OF_MEMORY), Model()
    found = compared(machine, model)
    found.compare(7)
    assert [one for one, _, _ in model.learned] == [WITH_BF16]
    assert len(machine.compared) == 2


@pytest.mark.parametrize(
    ("change", "compares"),
    [({}, True), ({"kind": GoalKind.CHEAPEST}, False), ({"batches": (0.5, 1.0)}, False)],
    ids=["faster", "another goal", "several batches"],
)
def test_it_is_for_speed(change: dict[str, Any], compares: bool) -> None:
    aim: Goal = goal(kind=change.get("kind", GoalKind.FASTER))
    space = msgspec.structs.replace(TWO, batch_fractions=change.get("batches", (1.0,)))
    context: StudyContext = study(aim, space=space)
    assert compares_pairs(context) is compares
