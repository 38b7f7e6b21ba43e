"""What the answer says of where the time goes rests on measured steps, and is left out where nothing is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.choose import choose
from advisor.measure.step_split import PhaseSplit, StepSplit
from advisor.methods.setting import use
from advisor.phase import Phase
from advisor.policy.policy import Policy
from advisor.predict.step_work import Kind, StepWork
from advisor.session.answer.where_time_goes import with_time_explained
from advisor.trial.outcome import Outcome
from advisor.trial.result import SplitResult
from tests.decide.examples import baseline, goal, measured, on
from tests.predict.rates import group, rates, work_of
from tests.search.test_build_space import FACTS
from tests.session.contexts import study

FORWARD = group(Phase.FORWARD, flops=(0, 1000), read_bytes=10.0, launches=1.0)
OPTIMIZER = group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=200.0, written_bytes=100.0, launches=4.0)
SMALLER = group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=50.0, written_bytes=25.0, launches=4.0)
ADAM = use("adam_8bit")
PLAIN, WINNER = baseline(100), measured(150, ADAM)


class FakeTrials:
    """Counts what it was told to."""

    def __init__(self, plain: StepWork | None, winner: StepWork | None, *splits: StepSplit) -> None:
        self.plain, self.winner, self.splits = plain, winner, list(splits)
        self.asked: list[Policy] = []
        self.sizes: list[object] = []

    def at_size(self, model_size: object) -> FakeTrials:
        self.sizes.append(model_size)
        return self

    def count_work(self, policy: Policy) -> StepWork | None:
        self.asked.append(policy)
        return self.winner if policy.methods else self.plain

    def split(self, policy: Policy, **asked: object) -> SplitResult:
        assert policy.gpu_count > 1, "one device sends nothing"
        return SplitResult(key="split", outcome=Outcome.OK, split=self.splits.pop(0) if self.splits else None)


def explained(
    candidates: list[Candidate], trials: FakeTrials, *, seconds: float = 1000.0, known: bool = True
) -> Recommendation:
    recommendation = choose(candidates, goal(), refused_settings={}, untried=0, stopped_because="")
    fake: Any = trials
    facts = msgspec.structs.replace(FACTS, device_rates=rates() if known else None)
    recommendation = msgspec.structs.replace(recommendation, why=("It is faster.",))
    return with_time_explained(study(seconds=seconds, facts=facts), fake, recommendation)


def test_where_plain_training_spends_its_time_and_what_the_winner_shortens() -> None:
    why = explained([PLAIN, WINNER], FakeTrials(work_of(FORWARD, OPTIMIZER), work_of(FORWARD, SMALLER))).why
    assert why[0] == "It is faster."
    assert "plain training at batch 8 spends" in why[1]
    assert "optimizer step, bound by memory bandwidth" in why[1]
    assert why[2].endswith("(adam_8bit lowers optimizer state).")


def test_the_seconds_are_those_that_were_measured() -> None:
    """80 ms of plain training at batch 8, a third of which are 300 bytes at 10 bytes per second."""
    why = explained([PLAIN, WINNER], FakeTrials(work_of(OPTIMIZER), work_of(SMALLER))).why
    assert "is predicted to take 6.67 ms instead of 10.0 ms" in why[2], "53.3 ms and 80 ms, by 8 samples"


def test_a_winner_without_methods_says_where_its_own_time_goes() -> None:
    why = explained([PLAIN], FakeTrials(work_of(FORWARD, OPTIMIZER), None)).why
    assert len(why) == 2


@pytest.mark.parametrize(
    ("candidates", "trials", "options", "asked"),
    [
        ([PLAIN, WINNER], FakeTrials(None, None), {}, 2),
        ([PLAIN, WINNER], FakeTrials(work_of(FORWARD), None), {}, 2),
        ([PLAIN, WINNER], FakeTrials(None, None), {"known": False}, 0),
        ([PLAIN, WINNER], FakeTrials(None, None), {"seconds": 5.0}, 0),
        ([WINNER], FakeTrials(None, None), {}, 0),
        ([PLAIN, on(2, WINNER)], FakeTrials(work_of(FORWARD), work_of(FORWARD)), {}, 2),
    ],
    ids=["no trace", "no trace of the winner", "no rates", "no time", "no baseline", "two devices"],
)
def test_nothing_is_said_where_it_is_unknown(
    candidates: list[Candidate], trials: FakeTrials, options: dict[str, Any], asked: int
) -> None:
    assert explained(candidates, trials, **options).why == ("It is faster.",)
    assert len(trials.asked) == asked


def test_steps_of_other_sizes_and_of_several_devices_are_followed_for_the_report() -> None:
    trials = FakeTrials(work_of(FORWARD), work_of(FORWARD))
    larger = msgspec.structs.replace(on(2, WINNER), model_size={"layers": 4})
    assert explained([PLAIN, larger], trials).why == ("It is faster.",)
    assert trials.asked == [PLAIN.policy, larger.policy]
    assert trials.sizes == 2 * [{"layers": 4}]


def split_of(exposed: float) -> StepSplit:
    """A step of a second, a half of which it communicates."""
    backward = PhaseSplit(phase=Phase.BACKWARD, seconds=1.0, communication_seconds=0.5, exposed_seconds=exposed)
    return StepSplit(phases=(backward,), steps=3)


def test_on_several_devices_what_of_a_step_is_communication_is_said_of_winner_and_baseline() -> None:
    plain = msgspec.structs.replace(on(2, PLAIN), role=PLAIN.role)
    trials = FakeTrials(None, None, split_of(0.4), split_of(0.125))
    why = explained([plain, on(2, WINNER)], trials, known=False).why
    assert why[1].startswith("On the first of 2 devices 12% of a step is communication that no computation hides")
    assert "(the baseline's: 40%); during another 38% it communicates and computes." in why[1]


def test_a_baseline_of_one_device_is_not_profiled() -> None:
    why = explained([PLAIN, on(2, WINNER)], FakeTrials(None, None, split_of(0.125))).why
    assert "the baseline's" not in why[1]
