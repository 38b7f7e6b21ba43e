from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.goal import Fidelity, Goal, Preference
from advisor.report.why import explain
from advisor.trial.outcome import Outcome
from tests.decide.costs import cheapest, decide, timed
from tests.decide.examples import lost

from .cost_scenario import cost_goal, cost_recommendation
from .scenario import BF16, CHECKPOINT


def why(candidates: Sequence[Candidate], aim: Goal | None = None) -> str:
    return " ".join(explain(decide(candidates, aim), aim or cheapest()))


ONE = timed(2.0, role=Role.BASELINE)
TWO = timed(1.2, BF16, gpu_count=2, fidelity=Fidelity.PRECISION)
FOUR = timed(1.0, BF16, gpu_count=4, fidelity=Fidelity.PRECISION)


def test_the_whole_story_in_figures() -> None:
    text = " ".join(cost_recommendation().why)
    assert text.startswith(
        "Training with precision bf16 at batch 8 on 4 devices takes 301 ms (±0.5%) per iteration and costs $1.20 per "
        "1000 iterations at $3.60 per device-hour (profiles/a100_80gb.yaml, retrieved 2026-11-21). It is the knee of "
        "the frontier, where cost x latency is least;"
    )
    assert (
        "17% cheaper but 1.65 times as long: chunked_cross_entropy chunks=8 + precision bf16 at batch 16 on 2 devices."
        in text
    )
    assert (
        "Against the baseline (plain training at batch 8 x 4: 1.92 s, $1.92 per 1000 iterations) it is 6.38 times as "
        "fast and costs 37% less." in text
    )
    assert (
        "Against the hand-tuned default (precision bf16 at batch 32: 1.03 s, $1.03 per 1000 iterations) it is 3.42 "
        "times as fast and costs 17% more." in text
    )
    assert "Its peak of 4.00 GiB is 50% of the 8.00 GiB limit." in text
    assert "its first losses differ by 0.4% (2.0% is tolerated)" in text
    assert "Not tried: 41 combinations of the space, because the limit of 40 trials was reached." in text


def test_a_faster_point_says_what_it_costs() -> None:
    text = why([ONE, TWO, FOUR])
    assert "1.20 times as fast for 1.67 times the cost: precision bf16 at batch 8 on 4 devices." in text
    assert "17% cheaper but 1.67 times as long: plain training at batch 32." in text


def test_each_preference_is_given_as_the_reason() -> None:
    points = [ONE, TWO, FOUR]
    assert "It is the cheapest that takes at most 1.50 s per iteration." in why(
        points, cheapest(Preference(max_latency_seconds=1.5))
    )
    assert "It is the fastest that costs at most $0.00300 for an iteration." in why(
        points, cheapest(Preference(max_cost_usd=0.003))
    )
    assert "It is the cheapest that takes at most 25m00s for 1,000 iterations." in why(
        points, cheapest(Preference(deadline_seconds=1500, iterations=1000))
    )
    assert "Nothing measured that may win is cheaper or faster beyond the noise." in why([ONE])


def test_a_whole_run_has_its_time_and_cost() -> None:
    assert "1,000 iterations take 20m00s and cost $2.40." in why([ONE, TWO], cheapest(Preference(iterations=1000)))
    assert "iterations take" not in why([ONE, TWO])


def test_processes_that_share_memory_have_a_part_of_the_limit_each() -> None:
    shared = msgspec.structs.replace(cheapest(), shares_memory=True)
    assert "Its peak of 4.00 GiB is 100% of the 4.00 GiB limit." in why([ONE, TWO], shared)


def test_energy_is_told_beside_the_price() -> None:
    goal = cost_goal(usd_per_kilowatt_hour=0.3)
    text = " ".join(cost_recommendation(goal, energy=True).why)
    assert "Its energy is 361 J per iteration: $0.0301 per 1000 iterations at $0.30 per kWh" in text
    assert "the least on the frontier is 283 J, by point 1" in text
    assert "energy" not in " ".join(cost_recommendation().why)


def test_plain_training_is_a_good_answer() -> None:
    assert "The pick is the baseline itself." in why([ONE, timed(2.4, CHECKPOINT)])
    tied = why([ONE, timed(1.99, CHECKPOINT)])
    assert "The pick is the baseline itself; what measured better did so inside the noise of 1.0%." in tied
    assert "Nothing else was measured" in why([ONE])


def test_a_tie_with_the_baseline_is_told() -> None:
    lossy_baseline = timed(2.0, CHECKPOINT, role=Role.BASELINE)
    assert "It ties with the baseline (checkpoint every=2 at batch 32: 2.00 s" in why([lossy_baseline, timed(1.99)])


def test_a_baseline_without_a_figure_says_why() -> None:
    text = why([lost(Outcome.OUT_OF_MEMORY, role=Role.BASELINE, reason="too big", micro_batch=32), TWO])
    assert "The baseline (plain training at batch 32) has no measurement; it ended as out of memory: too big." in text
