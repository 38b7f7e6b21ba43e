"""Plain training is fast in one process and slow in the next: a promise covers both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.uneven import are_many, are_uneven
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.space.space import Axis
from advisor.trial.outcome import Outcome
from advisor.trial.result import ConfirmResult, Pace
from tests.decide.examples import baseline, measured
from tests.session import contexts
from tests.session.test_conclude import FakeTrials, conclude

pytestmark = pytest.mark.usefixtures("as_many_pairs_as_usual")

BASELINE = baseline(100)
KEEPS = use("retain_freed_memory")
WINNER = measured(220, use("channels_last"), KEEPS)
SLOW, FAST = 2.2, 1.28


@pytest.fixture(autouse=True)
def a_space_in_which_memory_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    space = msgspec.structs.replace(contexts.SPACE, axes=(Axis(method=KEEPS.name, settings=(KEEPS,)),))
    monkeypatch.setattr(contexts, "SPACE", space)


def about(value: float) -> Speedup:
    return Speedup(value=value, low=0.98 * value, high=1.02 * value, rounds=9)


class InProcesses(FakeTrials):
    """Every confirmation sees a process of the baseline that takes so many pages in a step.

    Over the baseline the wrapper is as fast as in a slow one; over a baseline that keeps its memory, as in a fast one.
    """

    def __init__(self, *page_faults: float) -> None:
        super().__init__({})
        self.page_faults = list(page_faults)
        self.beside: list[Policy] = []

    def confirm(
        self, policy: Policy, wrapper_path: str, *, repeat: int, around_stalls: bool = True, **asked: Any
    ) -> ConfirmResult:
        result = super().confirm(policy, wrapper_path, repeat=repeat)
        beside = asked.get("beside", BASELINE.policy)
        self.beside.append(beside)
        steady = beside != BASELINE.policy
        found = about(FAST if steady else SLOW)
        faults = 0.0 if steady else self.page_faults[min(repeat, len(self.page_faults) - 1)]
        result = msgspec.structs.replace(
            result, speedup=found, paces=(Pace(policy=beside, samples_per_second=100.0, page_faults=faults),)
        )
        self.turns.learn(result)
        return result


def searched(value: float = 1.83) -> Any:
    return msgspec.structs.replace(WINNER, speedup=about(value))


def test_the_promise_reaches_down_to_what_is_left_over_a_process_that_takes_no_pages(tmp_path: Path) -> None:
    """Trap: two processes agreed on 2.2 times, "confirmed"; in 4 of 10 plain training is as fast as 1.28 leaves it."""
    trials = InProcesses(992, 304)
    found = conclude(tmp_path, [BASELINE, searched()], trials)
    promise = found.confirmation.promise
    assert promise.value == pytest.approx(SLOW)
    assert 1 < promise.low < FAST
    assert [one.label for one in trials.beside].count("retain_freed_memory") == 1
    assert found.confirmation.as_promised, "what the search saw lies between the two"
    why = " ".join(found.why)
    assert "a step takes 304 to 992 pages of memory from the system" in why
    assert "A baseline with retain_freed_memory takes none, and over it the speedup is 1.28 times" in why
    assert "Other processes slow" not in why


def test_processes_that_take_as_many_pages_as_each_other_are_believed_once_there_are_four(tmp_path: Path) -> None:
    trials = InProcesses(370_000, 420_000, 400_000, 390_000)
    found = conclude(tmp_path, [BASELINE, searched(SLOW)], trials)
    assert trials.beside == 4 * [BASELINE.policy]
    assert found.confirmation.promise.low > 1.9


def test_a_few_pages_a_step_take_no_time(tmp_path: Path) -> None:
    trials = InProcesses(6, 40)
    conclude(tmp_path, [BASELINE, searched(SLOW)], trials)
    assert trials.beside == [BASELINE.policy]


def test_without_time_there_is_one_pair(tmp_path: Path) -> None:
    trials = InProcesses(992, 304)
    conclude(tmp_path, [BASELINE, searched(SLOW)], trials, seconds=1e-9)
    assert trials.beside == [BASELINE.policy]


def test_however_much_processes_differ_no_less_is_promised_than_over_one_that_takes_no_pages(
    tmp_path: Path,
) -> None:
    """Trap: 1.46 to 1.89 times in five processes, 1.31 over one without page faults; "between 0.81 and 3.58"."""
    rates = [1000.0, 3000.0, 6000.0, 1500.0]
    trials = InProcesses(406, 2471)
    for rate in rates:
        pace = Pace(policy=BASELINE.policy, samples_per_second=rate, page_faults=1000.0)
        trials.turns.learn(ConfirmResult(key="k", outcome=Outcome.OK, paces=(pace,)))
    found = conclude(tmp_path, [BASELINE, searched(SLOW)], trials)
    promise = found.confirmation.promise
    assert FAST / 1.1 < promise.low < FAST
    assert promise.high > 2 * SLOW, "upwards the processes tell"
    assert found.winner.policy == WINNER.policy


def test_a_winner_that_only_keeps_its_memory_may_gain_nothing_over_a_fast_process(tmp_path: Path) -> None:
    only = msgspec.structs.replace(measured(220, KEEPS), speedup=about(SLOW))
    trials = InProcesses(992, 304)
    found = conclude(tmp_path, [BASELINE, only], trials)
    assert trials.beside == len(trials.beside) * [BASELINE.policy], "the steady baseline is the winner itself"
    assert found.winner.policy == only.policy
    assert found.confirmation.promise.low == 1.0
    assert "depending on where its blocks happen to lie. The winner takes none." in " ".join(found.why)


def test_a_winner_that_does_not_keep_its_memory_is_compared_with_a_baseline_that_does_too(tmp_path: Path) -> None:
    """Trap: the next study of the same model was won by a policy without the method, at 2.26 times, ±33 %."""
    other = msgspec.structs.replace(measured(220, use("channels_last")), speedup=about(SLOW))
    trials = InProcesses(992, 304)
    found = conclude(tmp_path, [BASELINE, other], trials)
    assert [one.label for one in trials.beside].count("retain_freed_memory") == 1
    assert 1 < found.confirmation.promise.low < FAST


def test_what_is_many_and_what_is_uneven() -> None:
    assert not are_many(())
    assert not are_many((6.4, 90.0))
    assert are_many((6.4, 212.0))
    assert are_uneven((6.4, 212.0))
    assert are_uneven((992.0, 1049.0)), "too few for a block of 32 MiB, so from the end of the heap"
    assert are_uneven((8000.0,))
    assert not are_uneven((9920.0, 10490.0))
    assert are_uneven((9920.0, 20000.0))
    assert not are_uneven((0.5, 40.0))
