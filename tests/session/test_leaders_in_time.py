"""Leaders of short steps: when they are timed, and what the search hears of those that do not keep their promise."""

from __future__ import annotations

import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.goal import Fidelity
from advisor.methods.setting import use
from advisor.search.space.space import Combination
from advisor.session.budget import TimeBudget
from advisor.trial.outcome import Outcome
from tests.decide.examples import baseline, lost, measured
from tests.decide.test_leader import compared
from tests.session.test_budget import Clock
from tests.session.test_loop import BF16, ComparingFake, FakeGuard, Search


@pytest.mark.parametrize(
    ("timed_as", "told"),
    [
        (measured(300, BF16, fidelity=Fidelity.PRECISION), ("fidelity", False)),
        (lost(Outcome.CRASHED, BF16), ("outcome", False)),
        (lost(Outcome.OUT_OF_MEMORY, BF16), ("memory", False)),
        (lost(Outcome.TIMEOUT, BF16), ("outcome", True)),
    ],
    ids=["trains wrongly", "crashes", "does not fit", "takes too long"],
)
def test_the_search_hears_of_a_leader_that_does_not_keep_what_short_steps_promised(
    timed_as: Candidate, told: tuple[str, bool]
) -> None:
    search = Search([compared(300, BF16, micro_batch=8)], FakeGuard(broken="precision"), earlier=[baseline(100)])
    search.loop._evaluator = search.loop._comparing = fake = ComparingFake(search.proposer)
    fake.timed_as = timed_as
    search.loop.run()
    assert len(fake.timed) == 1
    assert search.proposer.ruled_out == [(Combination((BF16,)).label, *told)]
    assert search.proposer.learned == [], "none of its figures may win"


def test_once_a_dozen_were_compared_what_may_lead_is_timed_before_anything_is_set_up() -> None:
    """The trap: a set-up that did not end took 49 s, and what was 8 % ahead in turn had no time left to win."""
    slower = [compared(60, use("checkpoint", every=every), micro_batch=8) for every in range(1, 11)]
    likely = compared(300, use("channels_last"), micro_batch=8, error=0.05)
    earlier = [measured(290, role=Role.BASELINE)]
    search = Search([*slower, likely, compared(200, use("compile"))], FakeGuard(), trials=40, earlier=earlier)
    clock = Clock()
    search.loop._budget = TimeBudget(900.0, clock=clock)
    search.loop._budget.durations.timing_seconds = 30.0
    search.loop._budget.durations.trial_seconds += [100.0] * 5
    search.loop._budget.durations.short_seconds.append(5.0)
    clock.now += 500.0
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.loop.run()
    assert search.loop._budget.may_set_up, "there was time for both"
    assert [one.policy.methods for one in fake.timed] == [(use("channels_last"),)]
    assert fake.timed_after == [11], "after the last comparison, before the one that compiles"
