"""The frontier of cost against latency: what is on it, what is not and why, and what noise changes."""

from __future__ import annotations

import itertools
import random

import pytest

from advisor.decide.candidate import Candidate, Frontier, Recommendation, Role
from advisor.decide.cost import cost_of
from advisor.decide.eligible import best_so_far, pace
from advisor.errors import NothingMeasuredError
from advisor.goal import Fidelity, Preference
from advisor.measure.measurement import StopReason
from advisor.methods.setting import use
from advisor.trial.outcome import Outcome

from .costs import cheapest, decide, timed
from .examples import LIMIT, goal, lost, measured

CHECKPOINT = use("checkpoint", every=1)
BF16 = use("precision", dtype="bf16")
ADAM = use("adam_8bit")

ONE = timed(2.0, role=Role.BASELINE)
TWO = timed(1.2, BF16, gpu_count=2)
FOUR = timed(0.8, BF16, gpu_count=4)


def frontier(answer: Recommendation) -> Frontier:
    assert answer.frontier is not None
    return answer.frontier


def on(answer: Recommendation) -> list[Candidate]:
    by_key = {one.policy.key: one for one in answer.ranking}
    return [by_key[point.policy.key] for point in frontier(answer).points]


def test_the_points_are_those_that_none_beats_in_both_the_cheapest_first() -> None:
    answer = decide([FOUR, ONE, TWO])
    assert on(answer) == [ONE, TWO, FOUR]
    costs = [point.cost_usd for point in frontier(answer).points]
    assert costs == pytest.approx([0.002, 0.0024, 0.0032])
    assert frontier(answer).dominated == ()


def test_a_dominated_point_is_named_with_the_point_that_dominates_it() -> None:
    slow = timed(1.5, CHECKPOINT, gpu_count=2)
    worse = timed(1.3, CHECKPOINT, gpu_count=4)
    answer = decide([ONE, TWO, slow, worse])
    assert on(answer) == [ONE, TWO]
    assert [(one.point.policy, one.by, one.inside_noise) for one in frontier(answer).dominated] == [
        (slow.policy, 1, False),
        (worse.policy, 1, False),
    ]


def test_of_one_number_of_devices_only_the_fastest_is_a_point() -> None:
    others = [timed(2.0 + step / 10, CHECKPOINT, accumulation_steps=2**step) for step in range(1, 5)]
    assert on(decide([ONE, *others])) == [ONE]


def test_several_devices_that_are_no_faster_are_no_offer() -> None:
    assert on(decide([ONE, timed(2.0, BF16, gpu_count=2), timed(2.5, BF16, gpu_count=4)])) == [ONE]


def test_a_lead_inside_the_noise_does_not_buy_devices() -> None:
    barely = timed(1.99, BF16, gpu_count=2, spread=0.01)
    answer = decide([ONE, barely])
    assert on(answer) == [ONE]
    assert frontier(answer).dominated[0].by == 0
    assert frontier(answer).dominated[0].inside_noise


def test_a_saving_inside_the_noise_does_not_cost_time() -> None:
    """Two devices are almost exactly twice as fast: one device saves half a percent and takes twice the time."""
    answer = decide([ONE, timed(1.005, BF16, gpu_count=2)])
    assert [one.policy.gpu_count for one in on(answer)] == [2]
    assert frontier(answer).dominated[0].inside_noise


def test_the_simplest_policy_stands_for_a_tie() -> None:
    first = timed(1.19, ADAM, BF16, gpu_count=2, fidelity=Fidelity.LOSSY, spread=0.01)
    answer = decide([ONE, first, TWO])
    assert on(answer) == [ONE, TWO]
    assert frontier(answer).dominated[0].point.policy == first.policy
    assert frontier(answer).dominated[0].inside_noise


def test_a_chain_of_small_differences_does_not_add_up() -> None:
    chain = [timed(1.0 + step / 100, CHECKPOINT, accumulation_steps=2**step, spread=0.005) for step in range(5)]
    points = frontier(decide(chain)).points
    assert len(points) == 1
    assert points[0].latency_seconds <= 1.01


def test_what_measured_worse_than_plain_training_stands_for_nothing() -> None:
    noisy = timed(2.05, spread=0.2, accumulation_steps=2)
    best = timed(1.95, BF16, ADAM, fidelity=Fidelity.LOSSY, spread=0.2)
    own = timed(2.0, role=Role.BASELINE, fidelity=Fidelity.LOSSY, spread=0.001)
    assert on(decide([own, best, noisy])) == [own]


def test_a_tie_does_not_cross_the_limit_that_was_set() -> None:
    just_within = timed(1.19, ADAM, BF16, gpu_count=2, fidelity=Fidelity.LOSSY, spread=0.01)
    answer = decide([ONE, just_within, TWO], cheapest(Preference(max_latency_seconds=1.195)))
    assert answer.winner == just_within
    assert just_within in on(answer)


def test_repetitions_of_a_policy_are_one_point_and_their_spread_is_noise() -> None:
    repeated = [timed(seconds, role=Role.BASELINE) for seconds in (1.9, 2.0, 2.1)]
    answer = decide([*repeated, timed(1.93, BF16, gpu_count=2)])
    assert [point.latency_seconds for point in frontier(answer).points] == [2.0]
    assert answer.noise == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize(
    "barred",
    [
        timed(0.1, ADAM, fidelity=Fidelity.LOSSY, drift=0.5),
        timed(0.1, CHECKPOINT, peak=LIMIT + 1),
        measured(1000, CHECKPOINT, micro_batch=8),
    ],
    ids=["its loss drifts", "it does not fit", "its global batch is another"],
)
def test_what_may_not_win_is_neither_on_the_frontier_nor_dominated(barred: Candidate) -> None:
    answer = decide([ONE, barred])
    assert on(answer) == [ONE]
    assert frontier(answer).dominated == ()
    assert barred in answer.ranking


def test_the_fidelity_ceiling_holds() -> None:
    fast = timed(0.5, BF16, fidelity=Fidelity.PRECISION)
    assert on(decide([ONE, fast], cheapest(fidelity=Fidelity.ROUNDING))) == [ONE]


def test_an_early_figure_is_no_point_while_there_is_another() -> None:
    early = timed(1.0, CHECKPOINT, stop_reason=StopReason.OUTPACED)
    answer = decide([ONE, early])
    assert on(answer) == [ONE]
    assert (frontier(answer).dominated[0].by, frontier(answer).dominated[0].inside_noise) == (None, False)
    assert on(decide([early])) == [early]


def test_nothing_that_may_win_is_an_error_as_for_every_goal() -> None:
    with pytest.raises(NothingMeasuredError, match="loss drift 50% is above the tolerance"):
        decide([timed(1.0, ADAM, fidelity=Fidelity.LOSSY, drift=0.5)])


def crowd(seed: int) -> list[Candidate]:
    """Forty candidates anywhere in the plane, many of them close to each other."""
    draw = random.Random(seed)
    return [
        timed(
            round(draw.uniform(0.5, 2.0) / count**0.7, 2),
            use("checkpoint", every=number),
            gpu_count=count,
            spread=_SPREAD,
        )
        for number in range(40)
        for count in (draw.choice((1, 2, 4, 8)),)
    ]


_SPREAD = 0.02
_NOISE = _SPREAD * 2**0.5


@pytest.mark.parametrize("seed", range(30))
class TestAnyCrowd:
    """What holds whatever was measured."""

    def test_everything_is_on_the_frontier_or_has_a_point_that_makes_it_pointless(self, seed: int) -> None:
        answer = decide(crowd(seed))
        found = frontier(answer)
        assert len(found.points) + len(found.dominated) == len(answer.ranking) == 40
        assert all(one.by is not None and one.by < len(found.points) for one in found.dominated)

    def test_along_the_frontier_cost_grows_and_latency_falls_by_more_than_the_noise(self, seed: int) -> None:
        points = frontier(decide(crowd(seed))).points
        for cheaper, faster in itertools.pairwise(points):
            assert faster.cost_usd > cheaper.cost_usd * (1 + _NOISE)
            assert faster.latency_seconds < cheaper.latency_seconds / (1 + _NOISE)

    def test_leaving_noise_out_gives_away_no_more_than_noise(self, seed: int) -> None:
        points = frontier(decide(crowd(seed))).points
        everything = [
            (cost_of(one, cheapest()).cost_usd, cost_of(one, cheapest()).latency_seconds) for one in crowd(seed)
        ]
        assert points[0].cost_usd <= min(cost for cost, _ in everything) * (1 + _NOISE) ** 2
        assert points[-1].latency_seconds <= min(latency for _, latency in everything) * (1 + _NOISE) ** 2

    def test_a_limit_that_something_meets_is_met(self, seed: int) -> None:
        latencies = sorted(cost_of(one, cheapest()).latency_seconds for one in crowd(seed))
        for limit in (latencies[0], latencies[3], latencies[20]):
            winner = decide(crowd(seed), cheapest(Preference(max_latency_seconds=limit))).winner
            assert cost_of(winner, cheapest()).latency_seconds <= limit
        costs = sorted(cost_of(one, cheapest()).cost_usd for one in crowd(seed))
        for limit in (costs[0], costs[3], costs[20]):
            winner = decide(crowd(seed), cheapest(Preference(max_cost_usd=limit))).winner
            assert cost_of(winner, cheapest()).cost_usd <= limit


class TestPace:
    """What a policy is held against while it is timed."""

    def test_for_the_least_cost_more_devices_set_no_pace(self) -> None:
        candidates = [ONE, TWO, FOUR]
        assert pace(candidates, cheapest(), 1) == pytest.approx(16)
        assert pace(candidates, cheapest(), 2) == pytest.approx(32 / 1.2)
        assert pace(candidates, cheapest(), 4) == pytest.approx(40)

    def test_for_speed_everything_that_may_win_does(self) -> None:
        drifted = measured(500, ADAM, fidelity=Fidelity.LOSSY, drift=0.5)
        early = measured(400, CHECKPOINT, stop_reason=StopReason.OUTPACED)
        assert pace([measured(100), measured(150, BF16), drifted, early], goal(), 1) == 150
        assert pace([], goal(), 1) is None

    def test_the_best_so_far_is_the_cheapest(self) -> None:
        assert best_so_far([FOUR, ONE, TWO, lost(Outcome.FAILED)], cheapest()) == ONE
