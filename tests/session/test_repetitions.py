"""Before one is recommended, those that may be the best are measured once more, as far as the time reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.choose import choose
from advisor.goal import Floor, Goal, GoalKind
from advisor.measure.measurement import StopReason
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.propose.standing import Standing
from advisor.search.space.space import Combination
from advisor.session.answer.remeasure import measure_leaders_again, times_measured
from advisor.trial.outcome import Outcome
from advisor.trial.result import TimeResult
from tests.decide.costs import cheapest, timed
from tests.decide.examples import baseline, goal, measured, measurement
from tests.session.contexts import study
from tests.session.ledgers import InMemory

PLAIN = baseline(100)
ONE, TWO, THREE, FOUR = (use("checkpoint", every=every) for every in (1, 2, 3, 4))


class FakeTrials:
    """Measures every policy at the same rate; counts."""

    def __init__(self, outcome: Outcome = Outcome.OK) -> None:
        self.outcome = outcome
        self.timed: list[Policy] = []

    def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int) -> TimeResult:
        assert outpaced_below is None
        self.timed.append(policy)
        if self.outcome is not Outcome.OK:
            return TimeResult(key="again", outcome=self.outcome, reason="it was told to")
        return TimeResult(key=f"again-{repeat}", outcome=Outcome.OK, measurement=measurement(90.0))


def recommended(candidates: Sequence[Candidate], aim: Goal) -> Recommendation:
    return choose(candidates, aim, refused_settings={}, untried=0, stopped_because="")


def again(
    candidates: list[Candidate],
    aim: Goal | None = None,
    *,
    seconds: float = 1000.0,
    outcome: Outcome = Outcome.OK,
    standings: dict[str, Standing] | None = None,
) -> tuple[list[Policy], list[Candidate]]:
    """What was measured again, and what was written down."""
    trials: Any = FakeTrials(outcome)
    ledger = InMemory(candidates)
    aim = aim or goal()
    context = study(aim, seconds=seconds, ledger=ledger)
    measured_any = measure_leaders_again(context, trials, recommended(candidates, aim), standings)
    assert measured_any is bool(trials.timed)
    candidates[:] = ledger.candidates
    return trials.timed, ledger.written


def test_the_winner_the_baseline_and_what_is_near_the_best_are_measured_again() -> None:
    best, near, far = measured(150, ONE), measured(144, TWO), measured(130, THREE)
    candidates = [PLAIN, best, near, far]
    repeated, kept = again(candidates)
    assert repeated == [best.policy, PLAIN.policy, near.policy]
    assert candidates[4:] == kept
    assert [times_measured(one.policy, candidates) for one in (best, near, far)] == [2, 2, 1]


def test_a_baseline_that_was_proposed_as_well_was_measured_once() -> None:
    """Trap: its trial was read back as plain training's, and taken for a repetition, so that it was never repeated."""
    own = msgspec.structs.replace(PLAIN, trial_key="time-1")
    read_back = msgspec.structs.replace(own, role=Role.SEARCHED)
    best = measured(150, ONE)
    repeated, _ = again([own, read_back, best])
    assert repeated == [best.policy, PLAIN.policy]
    slower = msgspec.structs.replace(baseline(80), trial_key="time-2", role=Role.SEARCHED)
    (found,) = recommended([own, read_back, slower], goal()).ranking
    assert (found.samples_per_second, found.role) == (80.0, Role.BASELINE), "the worse of two"
    assert recommended([own, read_back, best], goal()).repeats == 0.0


def test_three_and_the_baseline_at_most() -> None:
    leaders = [measured(150 - number, setting) for number, setting in enumerate((ONE, TWO, THREE, FOUR))]
    repeated, _ = again([PLAIN, *leaders])
    assert len(repeated) == 4


def thought(*scores: tuple[Candidate, float], deviation: float = 0.01) -> dict[str, Standing]:
    """What the search's model thinks of them."""
    return {
        Combination.of(one.policy).label: Standing(mean=-math.log(score), deviation=deviation) for one, score in scores
    }


def test_with_a_model_the_figure_that_it_thinks_lucky_and_the_baseline_are_measured_again() -> None:
    good, lucky = measured(150, ONE), measured(153, TWO)
    repeated, _ = again([PLAIN, good, lucky], standings=thought((PLAIN, 100), (good, 150), (lucky, 140)))
    assert repeated == [lucky.policy, PLAIN.policy]


def test_with_a_model_that_is_sure_of_the_leader_only_the_baseline_is() -> None:
    good, near = measured(150, ONE), measured(146, TWO)
    repeated, _ = again([PLAIN, good, near], standings=thought((PLAIN, 100), (good, 150), (near, 140)))
    assert repeated == [PLAIN.policy]
    assert again([PLAIN, PLAIN, good, near], standings=thought((PLAIN, 100), (good, 150), (near, 140))) == ([], [])


def test_a_repetition_changes_what_is_thought() -> None:
    """It was the leader by its first figure; the second is so much worse that another leads clearly."""
    unlucky, other = measured(150, ONE), measured(145, TWO)
    known = thought((PLAIN, 100), (unlucky, 150), (other, 149), deviation=0.02)
    assert again([PLAIN, PLAIN, unlucky, other], standings=known)[0] != []
    assert again([PLAIN, PLAIN, unlucky, other, measured(110, ONE)], standings=known) == ([], [])


def test_the_worse_of_two_figures_stands_for_a_policy() -> None:
    candidates = [PLAIN, measured(150, ONE)]
    again(candidates)
    winner = recommended(candidates, goal()).winner
    assert winner.measurement is not None
    assert winner.measurement.samples_per_second == 90


def test_two_that_are_near_each_other_even_so_are_measured_a_third_time_and_the_median_stands() -> None:
    unlucky, other, far = (measured(rate, setting) for rate, setting in ((94, ONE), (96, TWO), (80, THREE)))
    second = [measured(rate, setting) for rate, setting in ((101, ONE), (95, TWO), (81, THREE))]
    candidates = [baseline(50), baseline(50), unlucky, other, far, *second]
    repeated, _ = again(candidates)
    assert repeated == [unlucky.policy, other.policy]
    figures = {
        one.policy.key: one.measurement.samples_per_second
        for one in recommended(candidates, goal()).ranking
        if one.measurement is not None
    }
    assert [figures[one.policy.key] for one in (unlucky, other, far)] == [94, 95, 80]
    assert again(candidates) == ([], [])


def test_what_may_not_win_and_what_was_ended_early_is_not_measured_again() -> None:
    broken = measured(200, ONE, drift=0.5)
    early = measured(149, TWO, stop_reason=StopReason.OUTPACED)
    best = measured(150, THREE)
    repeated, _ = again([PLAIN, broken, early, best])
    assert repeated == [best.policy, PLAIN.policy]


def test_without_time_nothing_is_measured_again() -> None:
    assert again([PLAIN, measured(150, ONE)], seconds=1e-9) == ([], [])


def test_a_continued_study_does_not_measure_the_same_again() -> None:
    candidates = [PLAIN, measured(150, ONE)]
    again(candidates)
    assert again(candidates) == ([], [])


def test_where_plain_training_is_all_there_is_nothing_is_measured_again() -> None:
    assert again([PLAIN]) == ([], [])


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.FAILED, Outcome.CRASHED, Outcome.DIVERGED])
def test_what_does_not_run_a_second_time_is_not_recommended(outcome: Outcome) -> None:
    best = measured(150, ONE)
    candidates = [best, measured(149, TWO), measured(100, THREE)]
    _, kept = again(candidates, outcome=outcome)
    assert [one.outcome for one in candidates] == [outcome, outcome, Outcome.OK]
    assert kept == candidates[:2]
    assert candidates[0].reason == "run again, it ended: it was told to"
    assert recommended(candidates, goal()).winner.policy.methods == (THREE,)


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.LOST])
def test_a_second_run_that_ends_by_chance_says_nothing_of_the_policy(outcome: Outcome) -> None:
    candidates = [PLAIN, measured(150, ONE)]
    _, kept = again(candidates, outcome=outcome)
    assert kept == []
    assert recommended(candidates, goal()).winner.policy.methods == (ONE,)


def test_for_the_least_cost_the_points_of_the_frontier_are_measured_again() -> None:
    own, cheap, fast = (
        timed(2.0, role=Role.BASELINE),
        timed(1.5, ONE),
        timed(0.8, TWO, gpu_count=2, accumulation_steps=2),
    )
    aim = cheapest()
    frontier = recommended([own, cheap, fast], aim).frontier
    assert frontier is not None
    assert [point.policy for point in frontier.points] == [cheap.policy, fast.policy]
    repeated, _ = again([own, cheap, fast], aim)
    assert {policy.key for policy in repeated} == {one.policy.key for one in (own, cheap, fast)}


def test_for_the_largest_model_nothing_is_measured_again() -> None:
    own = msgspec.structs.replace(PLAIN, model_size={"layers": 2}, parameter_count=10)
    larger = msgspec.structs.replace(measured(150, ONE), model_size={"layers": 4}, parameter_count=20)
    aim = msgspec.structs.replace(goal(kind=GoalKind.BIGGER), floor=Floor(share_of_baseline=0.5))
    assert again([own, larger], aim) == ([], [])
